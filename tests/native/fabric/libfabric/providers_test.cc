// Which provider and interface are chosen, and what is said if there is none or no library.

#include "fabric/libfabric/providers.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fabric/libfabric/device.h"
#include "fabric/libfabric/library.h"
#include "libfabric_pair.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using testing::ExpectHas;
using testing::Faulty;
using testing::OnFaulty;
using testing::SetFaulty;

class LibfabricProvidersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Faulty().reset();
    ASSERT_TRUE(LoadLibrary(FAULTY_LIBFABRIC_LIBRARY, &library_).ok());
  }
  void TearDown() override { Faulty().reset(); }

  Status Find(const std::string& provider, const std::string& interface = "") {
    return Find(provider, interface, "libfabric");
  }
  Status Find(const std::string& provider, const std::string& interface,
              const std::string& fabric) {
    Settings settings;
    settings.fabric = fabric;
    settings.libfabric.provider = provider;
    settings.libfabric.interface = interface;
    providers_.clear();
    return FindProviders(*library_, settings, &providers_, &offers_);
  }
  // The names of what is found, best first.
  std::string Names(const std::string& provider) {
    const Status found = Find(provider);
    if (!found.ok()) return found.message();
    std::string names;
    for (const Provider& one : providers_) names += (names.empty() ? "" : " ") + one.name;
    return names;
  }
  std::string Interface(const std::string& list) {
    const Status found = Find("tcp", list);
    return found.ok() ? providers_[0].nics[0]->domain_attr->name : found.message();
  }

  std::shared_ptr<const Library> library_;
  std::vector<Provider> providers_;
  std::vector<Offer> offers_;
};

TEST_F(LibfabricProvidersTest, ACardComesBeforeTcp) {
  EXPECT_EQ(Names(""), "tcp");
  SetFaulty("provider=tcp+efa");
  EXPECT_EQ(Names(""), "efa tcp");
  SetFaulty("provider=cxi+tcp");
  EXPECT_EQ(Names(""), "cxi tcp");
}

// Its direct fabric comes first, where messages are too short.
TEST_F(LibfabricProvidersTest, EfaIsUsedWithItsProtocol) {
  SetFaulty("provider=efa nics=100 direct=1");
  ASSERT_EQ(Names(""), "efa");
  EXPECT_STREQ(providers_[0].nics[0]->fabric_attr->name, "efa");
  EXPECT_EQ(offers_.size(), 1u);
}

// Cards of a host that has several.
class LibfabricCardsTest : public LibfabricProvidersTest {
 protected:
  void SetUp() override {
    LibfabricProvidersTest::SetUp();
    setenv("SLURM_LOCALID", "0", 1);
    pci_ = std::filesystem::temp_directory_path() / "pci_XXXXXX";
    ASSERT_NE(mkdtemp(pci_.data()), nullptr);
  }
  void TearDown() override {
    LibfabricProvidersTest::TearDown();
    unsetenv("SLURM_LOCALID");
    std::filesystem::remove_all(pci_);
  }

  // The card is at a processor on which this thread does not run.
  void MoveAway(const std::string& pci_name) {
    std::filesystem::create_directory(pci_ + "/" + pci_name);
    std::ofstream(pci_ + "/" + pci_name + "/local_cpulist") << CPU_SETSIZE - 1 << "\n";
  }
  // The cards that this task uses, the first one first.
  std::string Used(const std::string& interfaces = "") {
    Settings settings;
    settings.fabric = "libfabric";
    settings.libfabric.interface = interfaces;
    providers_.clear();
    const Status found = FindProviders(*library_, settings, &providers_, &offers_, pci_);
    if (!found.ok()) return found.message();
    std::string names;
    for (const InfoPtr& nic : providers_[0].nics) {
      names += (names.empty() ? "" : " ") + std::string(nic->domain_attr->name);
    }
    return names;
  }
  std::string ReasonOf(const std::string& card) const {
    for (const Offer& offer : offers_) {
      if (offer.interface == card) return offer.reason;
    }
    return "not offered";
  }

  std::string pci_;
};

TEST_F(LibfabricCardsTest, CardsOfOneSpeedAreUsedTogether) {
  SetFaulty("provider=efa+tcp nics=100+0+100+25");
  EXPECT_EQ(Used(), "efa0 efa2");
  EXPECT_EQ(ReasonOf("efa0"), "it is a card's");
  EXPECT_EQ(ReasonOf("efa1"), "its link is down");
  EXPECT_EQ(ReasonOf("efa3"), "cards of another speed are used");
  ASSERT_EQ(providers_.size(), 2u);
  EXPECT_EQ(providers_[1].name, "tcp");
  EXPECT_EQ(providers_[1].nics.size(), 1u);
}

TEST_F(LibfabricCardsTest, NearCardsAreUsedIfThereAreAny) {
  SetFaulty("provider=cxi nics=200+200+200+200");
  MoveAway("0000:10:00.0");
  MoveAway("0000:12:00.0");
  EXPECT_EQ(Used(), "cxi1 cxi3");
  EXPECT_EQ(ReasonOf("cxi0"), "a card nearer to the processors of this task is used");
  MoveAway("0000:11:00.0");
  MoveAway("0000:13:00.0");
  EXPECT_EQ(Used(), "cxi0 cxi1 cxi2 cxi3");
}

TEST_F(LibfabricCardsTest, TasksOfAHostBeginWithDifferentCards) {
  SetFaulty("provider=efa nics=100+100+100");
  setenv("SLURM_LOCALID", "1", 1);
  EXPECT_EQ(Used(), "efa1 efa2 efa0");
  setenv("SLURM_LOCALID", "5", 1);
  EXPECT_EQ(Used(), "efa2 efa0 efa1");
  EXPECT_EQ(Used("efa1,efa0"), "efa1 efa0") << "the list has an order";
  EXPECT_EQ(Used("efa"), "efa2 efa0 efa1") << "this one has none";
  EXPECT_EQ(Used("^efa2"), "efa1 efa0");
}

TEST_F(LibfabricCardsTest, TheLauncherNumbersTheTasksOfAHost) {
  const char* const kSlurm[] = {"PATH=x", "SLURM_LOCALID=3", nullptr};
  const char* const kOurs[] = {"LOCAL_RANK=2", "SLURM_LOCALID=", nullptr};
  const char* const kNone[] = {"LOCAL_RANK=two", nullptr};
  EXPECT_EQ(LocalTask(kSlurm), 3u);
  EXPECT_EQ(LocalTask(kOurs), 2u);
  EXPECT_EQ(LocalTask(kNone), static_cast<uint32_t>(getpid()));
}

TEST_F(LibfabricCardsTest, ATaskUsesEightCardsAtMost) {
  SetFaulty("provider=efa nics=1+1+1+1+1+1+1+1+1+1");
  EXPECT_EQ(Used(), "efa0 efa1 efa2 efa3 efa4 efa5 efa6 efa7");
  EXPECT_EQ(ReasonOf("efa8"), "a task uses at most 8 cards");
  setenv("SLURM_LOCALID", "1", 1);
  EXPECT_EQ(Used(), "efa8 efa9 efa0 efa1 efa2 efa3 efa4 efa5") << "others use them all";
  setenv("SLURM_LOCALID", "2", 1);
  EXPECT_EQ(Used(), "efa7 efa8 efa9 efa0 efa1 efa2 efa3 efa4");
}

TEST_F(LibfabricCardsTest, EachCardIsADevice) {
  SetFaulty("provider=efa+tcp nics=100+100");
  Settings settings = OnFaulty();
  settings.libfabric = {FAULTY_LIBFABRIC_LIBRARY, "", "efa,lo"};
  std::vector<Rails> providers;
  ASSERT_TRUE(LibfabricDevice::OpenNics(settings, &providers).ok());
  ASSERT_EQ(providers.size(), 2u);
  EXPECT_EQ(providers[0].name, "libfabric/efa");
  ASSERT_EQ(providers[0].nics.size(), 2u);
  EXPECT_EQ(providers[1].name, "libfabric/tcp");
  EXPECT_EQ(providers[1].nics.size(), 1u);
  EXPECT_NE(providers[0].nics[1]->Summary().find("efa1"), std::string::npos);
}

TEST_F(LibfabricProvidersTest, BothNamesOfTcpMeanTheSame) {
  for (const char* name : {"provider=net", "provider=tcp"}) {
    SetFaulty(name);
    EXPECT_EQ(Names("tcp"), "tcp");
    EXPECT_EQ(Names("=tcp"), "tcp");
  }
}

TEST_F(LibfabricProvidersTest, AListChoosesAmongThem) {
  SetFaulty("provider=efa+cxi+tcp");
  EXPECT_EQ(Names("efa"), "efa");
  EXPECT_EQ(Names("cxi,efa"), "cxi");
  EXPECT_EQ(Names("tcp"), "tcp");
  EXPECT_EQ(Names("tcp,cxi"), "tcp cxi");
  EXPECT_EQ(Names("ef"), "efa") << "names are prefixes";
  EXPECT_EQ(Names("^efa"), "cxi tcp");
  EXPECT_EQ(Names("^efa,cxi"), "tcp");
  EXPECT_EQ(Names("^tcp"), "efa");
  EXPECT_EQ(Names("=tcp"), "tcp");
}

// Such as those of shared memory, or one that exists for tests.
TEST_F(LibfabricProvidersTest, AProviderThatNobodyNamedIsNotUsed) {
  SetFaulty("provider=shm+udp+tcp");
  EXPECT_EQ(Names(""), "tcp");
  EXPECT_EQ(Names("udp"), "udp");
}

TEST_F(LibfabricProvidersTest, WhatThereIsIsNamedIfNothingFits) {
  EXPECT_EQ(Find("efa").code(), Code::kFailedPrecondition);
  ExpectHas(Find("efa"), "RDMA_TRANSPORT_LIBFABRIC_PROVIDER");
  ExpectHas(Find("efa"), "tcp");
  EXPECT_EQ(Find("=tc").code(), Code::kFailedPrecondition);
  ExpectHas(Find("", "none0"), "none0");
  SetFaulty("no_provider=1");
  EXPECT_EQ(Find("").code(), Code::kNotFound);
}

TEST_F(LibfabricProvidersTest, AMalformedListIsAnError) {
  EXPECT_EQ(Find("tcp,,efa").code(), Code::kInvalidArgument);
  EXPECT_EQ(Find("tcp,^efa").code(), Code::kInvalidArgument);
  EXPECT_EQ(Find("", "lo,").code(), Code::kInvalidArgument);
  ExpectHas(Find("", "lo,"), "RDMA_TRANSPORT_LIBFABRIC_INTERFACE");
}

TEST_F(LibfabricProvidersTest, TheInterfaceIsTheOneOfTheList) {
  EXPECT_EQ(Interface("lo"), "lo");
  EXPECT_EQ(Interface("none0,lo"), "lo");
  EXPECT_EQ(Interface("=lo"), "lo");
  EXPECT_EQ(Interface("^none0,none1"), Interface(""));
  EXPECT_NE(Interface("^lo"), "lo");
}

TEST_F(LibfabricProvidersTest, TheLoopbackInterfaceIsNoWayToOtherHosts) {
  ASSERT_TRUE(Find("tcp").ok());
  std::set<std::string> others;
  for (const Offer& offer : offers_) others.insert(offer.interface);
  others.erase("lo");
  std::string no_other;  // as on a host without a network
  for (const std::string& name : others) no_other += (no_other.empty() ? "^" : ",") + name;
  for (const char* provider : {"", "tcp"}) {
    const Status automatic = Find(provider, no_other, kAutoFabric);
    EXPECT_EQ(automatic.code(), Code::kNotFound);
    ExpectHas(automatic, "only the loopback interface");
    ExpectHas(automatic, "RDMA_TRANSPORT_LIBFABRIC_INTERFACE");
    EXPECT_TRUE(Find(provider, "lo", kAutoFabric).ok()) << "it is named";
    EXPECT_TRUE(Find(provider, no_other, "libfabric").ok()) << "nothing else may be used";
    ASSERT_EQ(providers_.size(), 1u);
    EXPECT_STREQ(providers_[0].nics[0]->domain_attr->name, "lo");
  }
}

TEST_F(LibfabricProvidersTest, AMissingLibraryIsNotFound) {
  std::shared_ptr<const Library> none;
  for (const char* path : {"libnothing_fabric.so.1", "/dev/null", ""}) {
    const Status loaded = LoadLibrary(path, &none);
    EXPECT_EQ(loaded.code(), Code::kNotFound) << path;
    ExpectHas(loaded, "cannot load libfabric: ");
    ExpectHas(loaded, "apt-get install libfabric1");
    ExpectHas(loaded, "RDMA_TRANSPORT_LIBFABRIC");
  }
  Settings settings = OnFaulty();
  settings.libfabric.library = "libnothing_fabric.so.1";
  std::unique_ptr<Device> device;
  EXPECT_FALSE(OpenDevice(settings, &device).ok());
}

TEST_F(LibfabricProvidersTest, ALibraryOfAnotherKindIsRefused) {
  std::shared_ptr<const Library> other;
  const Status loaded = LoadLibrary("libm.so.6", &other);
  EXPECT_EQ(loaded.code(), Code::kUnimplemented);
  ExpectHas(loaded, "lacks fi_getinfo");
}

// The version is checked when the library is loaded, so this needs a name of its own for it.
TEST_F(LibfabricProvidersTest, ALibraryThatIsTooOldIsRefused) {
  const std::string library = FAULTY_LIBFABRIC_LIBRARY;
  const size_t slash = library.rfind('/');
  const std::string alias = library.substr(0, slash) + "/." + library.substr(slash);
  std::shared_ptr<const Library> loaded;
  SetFaulty("version=1.13");
  const Status old = LoadLibrary(alias, &loaded);
  EXPECT_EQ(old.code(), Code::kUnimplemented);
  ExpectHas(old, "is version 1.13; libfabric 1.14 or newer is needed");
  SetFaulty("version=1.14");
  EXPECT_TRUE(LoadLibrary(alias, &loaded).ok());
  EXPECT_EQ(loaded->Version(), "1.14");
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
