#include "fabric/verbs/ports.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "fabric/host/device_list.h"
#include "fabric/verbs/port_choice.h"
#include "fake_ibverbs/control.h"
#include "messages.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;

// All sentences, to be searched.
std::string Joined(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += sentence + "\n";
  return text;
}

Gid MakeGid(uint32_t index, GidType type, const char* address) {
  Gid gid;
  gid.index = index;
  gid.type = type;
  const std::string text = std::strchr(address, ':') ? address : std::string("::ffff:") + address;
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), gid.bytes.raw), 1) << text;
  return gid;
}

// A RoCE port of 100 Gb/s as a card of NVIDIA shows it.
PortCandidate Roce(const char* device, int number = 1) {
  PortCandidate port;
  port.device = device;
  port.number = number;
  port.attributes.state = IBV_PORT_ACTIVE;
  port.attributes.phys_state = 5;
  port.attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.attributes.active_mtu = IBV_MTU_1024;
  port.attributes.active_width = 2;
  port.attributes.active_speed = 32;
  port.attributes.gid_tbl_len = 255;
  port.gids = {MakeGid(0, GidType::kRoceV1, "fe80::1"), MakeGid(1, GidType::kRoceV2, "fe80::1"),
               MakeGid(2, GidType::kRoceV1, "10.7.0.1"), MakeGid(3, GidType::kRoceV2, "10.7.0.1")};
  port.pkeys = {0xffff};
  return port;
}

PortCandidate InfiniBand(const char* device, int number = 1) {
  PortCandidate port = Roce(device, number);
  port.attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.attributes.active_mtu = IBV_MTU_4096;
  port.attributes.lid = 5;
  port.gids = {MakeGid(0, GidType::kInfiniBand, "fe80::2")};
  return port;
}

// What is chosen among `candidates`.
struct Chosen {
  Chosen(const std::vector<PortCandidate>& candidates, const VerbsSettings& settings) {
    host::DeviceList list;
    status = host::ParseDeviceList("DEVICES", settings.devices, "names", &list);
    if (!status.ok()) return;
    status = ChooseAmong(candidates, list, settings, &choices, &left_out);
    if (!status.ok()) return;
    choice = choices.front();
    name = candidates[choice.candidate].Name();
    for (const PortChoice& one : choices) {
      names += (names.empty() ? "" : " ") + candidates[one.candidate].Name();
    }
  }

  Status status;
  std::vector<PortChoice> choices;
  PortChoice choice;  // the first one
  std::string name;   // of the first one
  std::string names;
  std::vector<std::string> left_out;
};

Chosen By(const std::string& devices, const std::vector<PortCandidate>& candidates) {
  VerbsSettings settings;
  settings.devices = devices;
  return Chosen(candidates, settings);
}

TEST(PortChoice, AllThatAreAsFastAsTheFastest) {
  std::vector<PortCandidate> ports = {Roce("mlx5_0"), Roce("mlx5_1"), Roce("mlx5_2"),
                                      Roce("mlx5_3")};
  ports[1].attributes.active_speed = 64;  // 4 lanes of HDR: 200 Gb/s
  ports[2].attributes.active_width = 16;  // 2 lanes of NDR, whose code is larger: 200 Gb/s
  ports[2].attributes.active_speed = 128;
  const Chosen chosen = By("", ports);
  ASSERT_TRUE(chosen.status.ok());
  EXPECT_EQ(chosen.names, "mlx5_1:1 mlx5_2:1");
  ASSERT_EQ(chosen.left_out.size(), 2u);
  EXPECT_EQ(chosen.left_out[0], "mlx5_0:1: slower than mlx5_1:1 (100 Gb/s, not 200 Gb/s)");
}

TEST(PortChoice, SpeedsThatNeedAWiderField) {
  std::vector<PortCandidate> ports = {InfiniBand("mlx5_0"), InfiniBand("mlx5_1")};
  ports[0].attributes.active_speed = 128;  // NDR
  ports[1].attributes.active_speed = 128;  // XDR, which the kernel shows as NDR here
  ports[1].speed_ex = 256;
  EXPECT_EQ(GigabitsPerSecond(ports[0]), 400);
  EXPECT_EQ(GigabitsPerSecond(ports[1]), 800);
  EXPECT_EQ(By("", ports).names, "mlx5_1:1");
}

TEST(PortChoice, NearOnesComeFirstAmongThoseOfOneSpeed) {
  std::vector<PortCandidate> ports = {Roce("mlx5_0"), Roce("mlx5_1"), Roce("mlx5_2")};
  ports[0].far = true;
  EXPECT_EQ(By("", ports).names, "mlx5_1:1 mlx5_2:1 mlx5_0:1");
  ports[0].attributes.active_speed = 64;
  EXPECT_EQ(By("", ports).names, "mlx5_0:1") << "speed counts more";
  EXPECT_EQ(By("mlx5_2,mlx5_1,mlx5_0", ports).name, "mlx5_2:1") << "and the list most";
}

TEST(PortChoice, TheOrderOfTheListComesBeforeSpeed) {
  std::vector<PortCandidate> ports = {Roce("mlx5_0"), Roce("mlx5_1"), Roce("bnxt_re0")};
  ports[0].attributes.active_speed = 128;
  Chosen chosen = By("mlx5_1,mlx5_0", ports);
  ASSERT_TRUE(chosen.status.ok());
  EXPECT_EQ(chosen.name, "mlx5_1:1");
  EXPECT_EQ(Joined(chosen.left_out),
            "mlx5_0:1: faster than mlx5_1:1 (400 Gb/s, not 100 Gb/s), which comes first in "
            "RDMA_TRANSPORT_DEVICES\n"
            "bnxt_re0:1: not in RDMA_TRANSPORT_DEVICES=mlx5_1,mlx5_0\n");
  ports[1].attributes.state = IBV_PORT_DOWN;
  EXPECT_EQ(By("mlx5_1,mlx5_0", ports).name, "mlx5_0:1") << "the next one of the list";
  EXPECT_EQ(By("mlx5", ports).name, "mlx5_0:1");
  EXPECT_EQ(By("^mlx5", ports).name, "bnxt_re0:1");
}

TEST(PortChoice, OnlyPortsOfTheSameKindOfNetworkAreUsedTogether) {
  const std::vector<PortCandidate> ports = {Roce("mlx5_0"), InfiniBand("mlx5_1"), Roce("mlx5_2")};
  EXPECT_EQ(By("", ports).names, "mlx5_0:1 mlx5_2:1");
  const Chosen chosen = By("mlx5_1,mlx5_2", ports);
  EXPECT_EQ(chosen.names, "mlx5_1:1");
  ExpectHas(Joined(chosen.left_out), "mlx5_2:1: on another kind of network than mlx5_1:1\n");
}

TEST(PortChoice, TheOrderOfTheListIsTheOrderOfUse) {
  std::vector<PortCandidate> ports;
  for (int i = 0; i < 10; ++i) ports.push_back(Roce(("mlx5_" + std::to_string(i)).c_str()));
  EXPECT_EQ(By("mlx5_4,mlx5_2,mlx5_3", ports).names, "mlx5_4:1 mlx5_2:1 mlx5_3:1");
  const Chosen chosen = By("", ports);
  EXPECT_EQ(chosen.choices.size(), kMaxPorts);
  ExpectHas(Joined(chosen.left_out), "mlx5_9:1: a task uses at most 8 ports\n");
}

TEST(PortChoice, AListThatNamesNothingHereSaysWhatIsHere) {
  const std::vector<PortCandidate> ports = {Roce("mlx5_0"), Roce("mlx5_1", 2)};
  for (const char* list : {"mlx4", "=mlx5", "mlx5_0:2"}) {
    const Chosen chosen = By(list, ports);
    EXPECT_EQ(chosen.status.code(), Code::kNotFound) << list;
    ExpectHas(chosen.status.message(), std::string("RDMA_TRANSPORT_DEVICES=") + list);
    ExpectHas(chosen.status.message(), "there are mlx5_0:1, mlx5_1:2");
  }
  EXPECT_EQ(By("^mlx5", ports).status.code(), Code::kFailedPrecondition);
  const Chosen chosen = By("mlx4_0:1,mlx5_1", ports);
  EXPECT_EQ(chosen.name, "mlx5_1:2");
  ExpectHas(Joined(chosen.left_out), "mlx4_0:1: named by RDMA_TRANSPORT_DEVICES, but there is no");
}

TEST(PortChoice, PortsThatAreNotUpSayInWhatState) {
  std::vector<PortCandidate> ports = {Roce("mlx5_0"), InfiniBand("mlx5_1"), InfiniBand("mlx5_2")};
  ports[0].attributes.state = IBV_PORT_DOWN;
  ports[0].attributes.phys_state = 3;
  ports[1].attributes.state = IBV_PORT_INIT;
  ports[2].attributes.state = static_cast<ibv_port_state>(7);
  ports[2].attributes.phys_state = 200;
  const Chosen chosen = By("", ports);
  EXPECT_EQ(chosen.status.code(), Code::kFailedPrecondition);
  const std::string& message = chosen.status.message();
  ExpectHas(message,
            "no RDMA port can be used:\n  mlx5_0:1: port is DOWN (physical state Disabled)");
  ExpectHas(message, "mlx5_1:1: port is INIT (physical state LinkUp)");
  ExpectHas(message, "subnet manager");
  ExpectHas(message, "mlx5_2:1: port is in an unknown state (physical state unknown)");
  EXPECT_EQ(chosen.left_out.size(), 3u);
}

TEST(PortChoice, PortsThatAreNotUpMayBeUsedLaterWithOthersOfTheirKind) {
  std::vector<PortCandidate> ports = {Roce("mlx5_0"), Roce("mlx5_1"), InfiniBand("mlx5_2"),
                                      Roce("mlx5_3"), Roce("mlx5_4"), Roce("mlx5_5")};
  ports[1].attributes.state = IBV_PORT_DOWN;
  ports[2].attributes.state = IBV_PORT_DOWN;
  ports[3].gids.clear();  // its interface has no address yet
  ports[4].problem = Status(Code::kPermissionDenied, "may not be opened");
  const auto later = [&](const std::string& devices, size_t most) {
    host::DeviceList list;
    EXPECT_TRUE(host::ParseDeviceList("DEVICES", devices, "names", &list).ok());
    std::string names;
    for (const size_t i : ChooseStandby(ports, list, ports[0], most))
      names += ports[i].Name() + " ";
    return names;
  };
  EXPECT_EQ(later("", 8), "mlx5_1:1 mlx5_3:1 ");
  EXPECT_EQ(later("", 1), "mlx5_1:1 ");
  EXPECT_EQ(later("mlx5_0,mlx5_3,mlx5_1", 8), "mlx5_3:1 mlx5_1:1 ");
  EXPECT_EQ(later("^mlx5_1", 8), "mlx5_3:1 ");
}

TEST(PortChoice, OtherTransportsAndUnreadableDevicesAreNamed) {
  std::vector<PortCandidate> ports(3);
  ports[0].device = "siw0";
  ports[0].transport = IBV_TRANSPORT_IWARP;
  ports[1].device = "efa_0";
  ports[1].transport = IBV_TRANSPORT_UNSPECIFIED;
  ports[2].device = "mlx5_0";
  ports[2].problem = Status(Code::kPermissionDenied, "may not be opened");
  Chosen chosen = By("", ports);
  EXPECT_EQ(chosen.status.code(), Code::kFailedPrecondition);
  ExpectHas(chosen.status.message(), "siw0: it has no reliable connections");
  ExpectHas(chosen.status.message(), "efa_0: it has no reliable connections");
  ExpectHas(chosen.status.message(), "mlx5_0: may not be opened");
  chosen = By("mlx5", ports);
  EXPECT_EQ(chosen.status.code(), Code::kPermissionDenied) << "the only one that was asked for";
  chosen = By("mlx5_0:1", ports);
  EXPECT_EQ(chosen.status.code(), Code::kPermissionDenied);
}

TEST(PortChoice, GidsOfRoceInTheOrderOfPreference) {
  PortCandidate port = Roce("mlx5_0");
  port.gids = {MakeGid(0, GidType::kRoceV1, "fe80::1"),   MakeGid(1, GidType::kRoceV1, "10.7.0.1"),
               MakeGid(2, GidType::kRoceV2, "fe80::1"),   MakeGid(5, GidType::kRoceV2, "fd00:7::1"),
               MakeGid(6, GidType::kRoceV2, "fd00:7::2"), MakeGid(7, GidType::kRoceV2, "10.7.0.1")};
  const auto best = [&port] { return By("", {port}).choice.gid.index; };
  EXPECT_EQ(best(), 7u) << "RoCE v2, IPv4";
  port.gids.pop_back();
  EXPECT_EQ(best(), 5u) << "RoCE v2, IPv6, the first";
  port.gids.resize(3);
  EXPECT_EQ(best(), 2u) << "RoCE v2, link-local";
  port.gids.resize(2);
  EXPECT_EQ(best(), 1u) << "RoCE v1";
  port.gids.clear();
  ExpectHas(By("", {port}).status.message(), "no usable GID: its network interface needs an IP");
}

TEST(PortChoice, AGidOfInfiniBandIsTheFirst) {
  PortCandidate port = InfiniBand("mlx5_0");
  port.gids.push_back(MakeGid(1, GidType::kInfiniBand, "fd00::1"));
  EXPECT_EQ(By("", {port}).choice.gid.index, 0u);
}

TEST(PortChoice, AnExplicitGidIndex) {
  VerbsSettings settings;
  settings.gid_index = 2;
  Chosen chosen({Roce("mlx5_0")}, settings);
  ASSERT_TRUE(chosen.status.ok());
  EXPECT_EQ(chosen.choice.gid.index, 2u);
  EXPECT_EQ(chosen.choice.gid.type, GidType::kRoceV1);

  settings.gid_index = 4;
  chosen = Chosen({Roce("mlx5_0")}, settings);
  EXPECT_EQ(chosen.status.code(), Code::kInvalidArgument);
  ExpectHas(chosen.status.message(), "RDMA_TRANSPORT_GID_INDEX=4 is an empty entry; there are 0 (");
  ExpectHas(chosen.status.message(), "3 (RoCE v2, 10.7.0.1)");

  settings.gid_index = 255;
  chosen = Chosen({Roce("mlx5_0")}, settings);
  EXPECT_EQ(chosen.status.code(), Code::kInvalidArgument);
  ExpectHas(chosen.status.message(), "beyond its table of 255 entries");
}

TEST(PortChoice, GidsOfARange) {
  PortCandidate port = Roce("mlx5_0");
  port.gids.push_back(MakeGid(4, GidType::kRoceV2, "10.8.0.1"));
  port.gids.push_back(MakeGid(5, GidType::kRoceV2, "fd00:7::1"));
  const auto chosen = [&](const char* range) {
    VerbsSettings settings;
    settings.gid_range = range;
    const Chosen by({port}, settings);
    return by.status.ok() ? by.choice.gid.Text() : by.status.message();
  };
  EXPECT_EQ(chosen(""), "10.7.0.1");
  EXPECT_EQ(chosen("10.8.0.0/16"), "10.8.0.1");
  EXPECT_EQ(chosen("10.8.0.0/13"), "10.8.0.1");
  EXPECT_EQ(chosen("10.0.0.0/8"), "10.7.0.1");
  EXPECT_EQ(chosen("0.0.0.0/0"), "10.7.0.1") << "any of IPv4";
  EXPECT_EQ(chosen("::/0"), "fd00:7::1") << "any of IPv6";
  ExpectHas(chosen("10.9.0.0/16"), "RDMA_TRANSPORT_GID_RANGE=10.9.0.0/16 has none of its GIDs");
  ExpectHas(chosen("10.9.0.0/16"), "4 (RoCE v2, 10.8.0.1)");
  for (const char* wrong : {"10.9.0.0", "10.9/16", "10.9.0.0/33", "::/129", "10.0.0.0/-1", "/8"}) {
    ExpectHas(chosen(wrong), "is not a subnet such as 10.7.0.0/16");
  }
  port = InfiniBand("mlx5_0");
  EXPECT_EQ(chosen("10.9.0.0/16"), "fe80::2") << "it is for RoCE";
}

TEST(PortChoice, PartitionKeys) {
  PortCandidate port = InfiniBand("mlx5_0");
  port.pkeys = {0, 0x7fff, 0x8001, 0x0002, 0x8002};
  VerbsSettings settings;
  const auto index = [&] { return Chosen({port}, settings).choice.pkey_index; };
  EXPECT_EQ(index(), 2) << "the first full one";
  settings.pkey = 0x7fff;
  EXPECT_EQ(index(), 1) << "a limited one, if asked for";
  settings.pkey = 2;
  EXPECT_EQ(index(), 4) << "a full one before a limited one";
  settings.pkey = 3;
  const Chosen chosen({port}, settings);
  EXPECT_EQ(chosen.status.code(), Code::kInvalidArgument);
  ExpectHas(chosen.status.message(),
            "RDMA_TRANSPORT_PKEY=0x0003 is not in its table; there are 0x7fff, 0x8001");
  settings.pkey = -1;
  port.pkeys = {0x7fff};
  EXPECT_EQ(index(), 0) << "limited, where there is no other";
  port.pkeys.clear();
  EXPECT_TRUE(Chosen({port}, settings).status.ok());
}

TEST(PortChoice, TheMtuIsTheSmallerOfTheTwo) {
  VerbsSettings settings;
  const auto mtu = [&] { return MtuBytes(Chosen({Roce("mlx5_0")}, settings).choice.mtu); };
  EXPECT_EQ(mtu(), 1024u);
  settings.mtu = 256;
  EXPECT_EQ(mtu(), 256u);
  settings.mtu = 4096;
  EXPECT_EQ(mtu(), 1024u);
}

TEST(Port, Text) {
  Port port;
  port.device = "mlx5_0";
  port.ethernet = true;
  port.gid = MakeGid(3, GidType::kRoceV2, "10.7.0.1");
  port.mtu = IBV_MTU_4096;
  EXPECT_EQ(port.Text(), "mlx5_0:1 (not active yet)");
  port.known = true;
  EXPECT_EQ(port.Text(), "mlx5_0:1 (RoCE v2, GID 3 = 10.7.0.1, MTU 4096)");
  port.ethernet = false;
  port.lid = 5;
  port.gid = MakeGid(0, GidType::kInfiniBand, "fe80::2");
  EXPECT_EQ(port.Text(), "mlx5_0:1 (InfiniBand, LID 5, GID 0 = fe80::2, MTU 4096)");
}

TEST(Library, NoneIsNotFoundWithWhatToInstall) {
  for (const char* path : {"/nowhere/libibverbs.so.1", ""}) {
    std::shared_ptr<const Library> library;
    const Status status = LoadLibrary(path, &library);
    EXPECT_EQ(status.code(), Code::kNotFound);
    ExpectHas(status.message(), "apt-get install libibverbs1");
    ExpectHas(status.message(), "dnf install libibverbs");
    EXPECT_EQ(library, nullptr);
  }
}

TEST(Library, AnotherLibraryLacksWhatIsNeeded) {
  std::shared_ptr<const Library> library;
  const Status status = LoadLibrary("libm.so.6", &library);
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  ExpectHas(status.message(), "it lacks ibv_get_device_list");
}

TEST(Library, TheOneOfThisHost) {
  std::shared_ptr<const Library> library;
  const Status status = LoadLibrary("libibverbs.so.1", &library);
  if (status.code() == Code::kNotFound) GTEST_SKIP() << status.message();
  ASSERT_TRUE(status.ok()) << status.message();
  std::shared_ptr<const Library> again;
  ASSERT_TRUE(LoadLibrary("libibverbs.so.1", &again).ok());
  EXPECT_EQ(library, again);

  std::vector<Port> ports;
  std::vector<std::string> left_out;
  const Status chosen = ChoosePorts(*library, VerbsSettings(), &ports, &left_out);
  for (const Port& port : ports) library->close_device(port.context);
  if (!chosen.ok()) {
    EXPECT_NE(chosen.code(), Code::kInternal) << chosen.message();
    EXPECT_FALSE(chosen.message().empty());
  }
}

class FakePorts : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(LoadLibrary(FAKE_IBVERBS_LIBRARY, &library_).ok());
    handle_ = dlopen(FAKE_IBVERBS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle_, nullptr);
    Control<void()>("fake_ibverbs_reset")();
  }

  void TearDown() override {
    FakeIbverbsStats stats;
    Control<void(FakeIbverbsStats*)>("fake_ibverbs_stats")(&stats);
    EXPECT_EQ(stats.contexts, 0u);
    EXPECT_EQ(stats.device_lists, 0u);
    Control<void()>("fake_ibverbs_reset")();
    dlclose(handle_);
  }

  template <typename Function>
  Function* Control(const char* name) {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

  void Set(const char* key, const char* value) {
    EXPECT_EQ(Control<int(const char*, const char*)>("fake_ibverbs_set")(key, value), 0) << key;
  }

  void Fail(const char* verb, int error) {
    EXPECT_EQ(Control<int(const char*, int, int)>("fake_ibverbs_fail")(verb, 1, error), 0) << verb;
  }

  // What is chosen; its context is closed again.
  Status Choose(const Library& library) {
    left_out_.clear();
    port_ = Port();
    std::vector<Port> ports;
    const Status status = ChoosePorts(library, settings_, &ports, &left_out_);
    EXPECT_EQ(status.ok(), !ports.empty()) << status.message();
    names_.clear();
    for (const Port& port : ports) {
      EXPECT_EQ(library.close_device(port.context), 0);
      names_ += port.device + ":" + std::to_string(port.number) + " ";
    }
    if (!ports.empty()) port_ = ports.front();
    return status;
  }
  Status Choose() { return Choose(*library_); }

  std::shared_ptr<const Library> library_;
  VerbsSettings settings_;
  Port port_;          // the first one
  std::string names_;  // of all that are chosen
  std::vector<std::string> left_out_;

 private:
  void* handle_ = nullptr;
};

TEST_F(FakePorts, ARocePort) {
  Set("active_mtu", "4096");
  Set("max_msg_sz", "1048576");
  Set("gids",
      "rocev1:fe80::1,none,rocev2:fe80::1,rocev2:fd00:7::1,rocev1:10.7.0.1,rocev2:10.7.0.1");
  const Status status = Choose();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_.Text(), "fake_0:1 (RoCE v2, GID 5 = 10.7.0.1, MTU 4096)");
  EXPECT_TRUE(port_.ethernet);
  EXPECT_EQ(port_.largest_message, uint64_t{1} << 20);
  EXPECT_GT(port_.attributes.max_qp_wr, 0);
  EXPECT_TRUE(left_out_.empty()) << Joined(left_out_);
}

TEST_F(FakePorts, AnInfiniBandPortAndItsPartition) {
  Set("link_layer", "infiniband");
  Set("lid", "7");
  Set("pkeys", "0x7fff,0x8001,0x8003");
  settings_.pkey = 3;
  const Status status = Choose();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_FALSE(port_.ethernet);
  EXPECT_EQ(port_.lid, 7);
  EXPECT_EQ(port_.pkey_index, 2);
  EXPECT_EQ(port_.gid.index, 0u);
  EXPECT_EQ(port_.gid.type, GidType::kInfiniBand);
}

TEST_F(FakePorts, WhatNewerLibrariesSayOfAPort) {
  Set("link_layer", "infiniband");
  Set("active_speed", "128");
  Set("active_speed_ex", "256");
  Set("grh_required", "1");
  ASSERT_TRUE(Choose().ok());
  EXPECT_EQ(port_.gigabits, 800);
  EXPECT_TRUE(port_.grh_required);
}

TEST_F(FakePorts, EveryPortThatIsNotUsedHasItsReason) {
  Set("devices", "fake_0,fake_1,fake_2,fake_3");
  Set("fake_0.open_error", "EACCES");
  Set("fake_1.ports", "2");
  Set("fake_1:1.port_state", "down");
  const Status status = Choose();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(names_, "fake_1:2 fake_2:1 fake_3:1 ");
  ASSERT_EQ(left_out_.size(), 2u) << Joined(left_out_);
  EXPECT_EQ(left_out_[0].rfind("fake_0: ibv_open_device", 0), 0u) << left_out_[0];
  ExpectHas(left_out_[0], "/dev/infiniband");
  EXPECT_EQ(left_out_[1].rfind("fake_1:1: port is DOWN", 0), 0u) << left_out_[1];
  settings_.devices = "=fake_3,fake_1:2";
  ASSERT_TRUE(Choose().ok());
  EXPECT_EQ(names_, "fake_3:1 fake_1:2 ");
}

std::string g_lines;

TEST_F(FakePorts, CardsThatJoinBecauseOfTheirSpeedAreNamed) {
  SetLogLevel(LogLevel::kInfo);
  SetLogSink([](LogLevel, const std::string& line) { g_lines += line + "\n"; });
  Set("devices", "fake_0");
  Set("ports", "2");
  ASSERT_TRUE(Choose().ok());
  EXPECT_EQ(g_lines, "") << "one card";
  Set("devices", "fake_0,fake_1");
  Set("ports", "1");
  ASSERT_TRUE(Choose().ok());
  ExpectHas(g_lines, "these ports share large transfers: fake_0:1 (10.0.0.1), fake_1:1 (10.0.0.2)");
  g_lines.clear();
  settings_.devices = "fake_0,fake_1";
  ASSERT_TRUE(Choose().ok());
  EXPECT_EQ(g_lines, "") << "they were named";
  SetLogSink(nullptr);
}

TEST_F(FakePorts, NoDevice) {
  Set("devices", "");
  const Status status = Choose();
  EXPECT_EQ(status.code(), Code::kNotFound);
  Set("devices", "fake_0");
  settings_.devices = "mlx5_0";
  EXPECT_EQ(Choose().code(), Code::kNotFound);
  settings_.devices = "mlx5_0:";
  EXPECT_EQ(Choose().code(), Code::kInvalidArgument);
}

TEST_F(FakePorts, VerbsThatFailAreReasons) {
  const struct {
    const char* verb;
    int error;
    Code code;
  } cases[] = {{"get_device_list", ENOSYS, Code::kUnimplemented},
               {"open_device", EACCES, Code::kPermissionDenied},
               {"query_device", EIO, Code::kUnavailable},
               {"query_port", ENOMEM, Code::kResourceExhausted}};
  for (const auto& [verb, error, code] : cases) {
    Fail(verb, error);
    const Status status = Choose();
    EXPECT_EQ(status.code(), code) << verb << ": " << status.message();
    ExpectHas(status.message(), std::string("ibv_") + verb);
    EXPECT_TRUE(Choose().ok()) << "the failure was for once";
  }
}

// Where the library is too old to say it.
TEST_F(FakePorts, TheKindOfAGidFromSysfs) {
  static std::string root;
  static decltype(&ibv_open_device) open_device;
  root = ::testing::TempDir() + "verbs_ports_test.XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::string types = root + "/ports/1/gid_attrs/types";
  ASSERT_TRUE(std::filesystem::create_directories(types));
  std::ofstream(types + "/0") << "IB/RoCE v1\n";
  std::ofstream(types + "/1") << "RoCE v2\n";
  open_device = library_->open_device;
  Library old = *library_;
  old.query_gid_ex = nullptr;
  old.open_device = [](ibv_device* device) {
    std::snprintf(device->ibdev_path, sizeof(device->ibdev_path), "%s", root.c_str());
    return open_device(device);
  };
  Set("gids", "rocev1:10.7.0.1,rocev2:10.7.0.1,rocev2:10.7.0.2");
  const Status status = Choose(old);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(port_.gid.type, GidType::kRoceV2);
  EXPECT_EQ(port_.gid.index, 1u);
  settings_.gid_index = 2;
  EXPECT_TRUE(Choose(old).ok());
  EXPECT_EQ(port_.gid.type, GidType::kRoceV1) << "the kernel does not say";
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
