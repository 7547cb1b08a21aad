// What a peer may reach of this process over verbs: which rights each registration and queue pair
// has, and where memory seems to lie.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fabric/host/file_descriptor.h"
#include "fabric/verbs/device.h"
#include "lines_with.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;
using testing::Fake;
using testing::FakeStats;
using testing::LinesWith;
using testing::OnFake;
using testing::OpenPlain;
using testing::Recorder;
using testing::SetFake;
using testing::Side;

constexpr uint64_t kLargePage = uint64_t{2} << 20;
constexpr uint32_t kLocal = IBV_ACCESS_LOCAL_WRITE;
constexpr uint32_t kRead = IBV_ACCESS_REMOTE_READ;
constexpr uint32_t kWrite = IBV_ACCESS_REMOTE_WRITE;

Settings WithIsolation(Isolation isolation) {
  Settings settings = OnFake();
  settings.verbs.isolation = isolation;
  return settings;
}

uint64_t AddressOf(const void* data) { return reinterpret_cast<uint64_t>(data); }

class VerbsIsolationTest : public testing::VerbsPairTest {
 protected:
  using Memory = FakeIbverbsMemory;

  static std::vector<Memory> Regions() { return ListOf(Fake().regions); }
  static std::vector<FakeIbverbsQueuePair> QueuePairs() {
    std::vector<FakeIbverbsQueuePair> pairs(1000);
    pairs.resize(static_cast<size_t>(Fake().queue_pairs(pairs.data(), 1000)));
    return pairs;
  }
  static Memory Find(const std::vector<Memory>& all, const void* address) {
    for (const Memory& memory : all) {
      if (memory.address == AddressOf(address)) return memory;
    }
    ADD_FAILURE() << "not there";
    return {};
  }
  // Without what may be dropped.
  static uint32_t Rights(const Memory& memory) {
    return memory.access & ~static_cast<uint32_t>(IBV_ACCESS_OPTIONAL_RANGE);
  }
  static std::multiset<uint32_t> RightsOf(const std::vector<Memory>& all) {
    std::multiset<uint32_t> rights;
    for (const Memory& memory : all) rights.insert(Rights(memory));
    return rights;
  }
  std::unique_ptr<Region> ReadOnly(Side& side) {
    std::unique_ptr<Region> region;
    EXPECT_TRUE(
        side.device->Allocate(side.device->RegionGranule(), Access::kRemoteRead, nullptr, &region)
            .ok());
    return region;
  }
  // Both ways, small enough for inline and not, at the beginning and the end of both.
  void ExpectToMove(const Region& local, const Region& remote) {
    uint64_t cookie = 100;
    for (const size_t length : {size_t{8}, size_t{5000}}) {
      for (const uint64_t offset : {uint64_t{0}, uint64_t{remote.length() - length}}) {
        std::memset(local.address() + offset, 'w', length);
        std::memset(remote.address() + offset, '-', length);
        const RemoteSpan span = {remote.key(), offset, length};
        ASSERT_TRUE(a_.channel->Write(local.address() + offset, span, ++cookie).ok());
        ASSERT_TRUE(a_.channel->Flush().ok());
        ASSERT_TRUE(Ended(cookie));
        EXPECT_EQ(std::string(remote.address() + offset, length), std::string(length, 'w'));
        std::memset(local.address() + offset, '-', length);
        ASSERT_TRUE(a_.channel->Read(span, local.address() + offset, ++cookie).ok());
        ASSERT_TRUE(Ended(cookie));
        EXPECT_EQ(std::string(local.address() + offset, length), std::string(length, 'w'));
      }
    }
  }
  bool Ended(uint64_t cookie) {
    return PollUntil([&] {
      for (const auto& [ended, status] : a_.handler->transfers) {
        if (ended == cookie) return status.ok();
      }
      return false;
    });
  }

 private:
  static std::vector<Memory> ListOf(int (*list)(Memory*, int)) {
    std::vector<Memory> all(1000);
    all.resize(static_cast<size_t>(list(all.data(), 1000)));
    return all;
  }
};

// --- Addresses ---

TEST_F(VerbsIsolationTest, MemoryOfPeersHasAddressesThatNobodyGuesses) {
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(WithIsolation(Isolation::kAddress)));
  const auto local = Allocate(a_);
  const auto remote = Shared(b_);
  std::set<uint64_t> shifts;
  for (const Memory& memory : Regions()) {
    if ((Rights(memory) & (kRead | kWrite)) == 0) continue;  // mirrors
    EXPECT_NE(memory.iova, memory.address);
    EXPECT_EQ(memory.iova % kLargePage, memory.address % kLargePage) << "large pages need that";
    shifts.insert(memory.iova - memory.address);
  }
  EXPECT_EQ(shifts.size(), 4u) << "two rings, two regions, each for itself";
  ExpectToMove(*local, *remote);
}

TEST_F(VerbsIsolationTest, TheyAreOthersEachTime) {
  std::set<uint64_t> seen;
  uint64_t changing = 0;
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(WithIsolation(Isolation::kAddress)));
  for (int i = 0; i < 32; ++i) {
    const auto region = Allocate(a_);
    const uint64_t iova = Find(Regions(), region->address()).iova;
    if (!seen.empty()) changing |= iova ^ *seen.begin();
    seen.insert(iova);
    EXPECT_LT(iova, uint64_t{1} << 62);
  }
  EXPECT_EQ(seen.size(), 32u);
  EXPECT_EQ(changing / kLargePage * kLargePage, (uint64_t{1} << 62) - kLargePage);
}

TEST_F(VerbsIsolationTest, TurnedOffTheyAreTheMemorysOwn) {
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(WithIsolation(Isolation::kOff)));
  const auto local = Allocate(a_);
  const auto remote = Shared(b_);
  for (const Memory& memory : Regions()) EXPECT_EQ(memory.iova, memory.address);
  ExpectToMove(*local, *remote);
}

TEST_F(VerbsIsolationTest, ACardThatTakesNoOtherAddressIsSaidSoOnce) {
  const LinesWith lines("only at its own address");
  SetFake("iova", "same");
  ConnectedPair(WithIsolation(Isolation::kAddress));
  const auto local = Allocate(a_);
  const auto remote = Shared(b_);
  EXPECT_EQ(lines.count(), 2) << "one for each device";
  ExpectToMove(*local, *remote);
}

// --- Rights ---

TEST_F(VerbsIsolationTest, NothingHasMoreRightsThanItNeeds) {
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(WithIsolation(Isolation::kAddress)));
  const auto readable = ReadOnly(a_);
  const auto writable = Allocate(a_);
  EXPECT_EQ(Rights(Find(Regions(), readable->address())), kLocal | kRead);
  EXPECT_EQ(Rights(Find(Regions(), writable->address())), kLocal | kRead | kWrite);
  const std::multiset<uint32_t> rights = RightsOf(Regions());
  EXPECT_EQ(rights.count(kLocal | kWrite), 2u) << "rings";
  EXPECT_EQ(rights.count(0), 2u) << "mirrors, which only this side's card reads";
  EXPECT_EQ(rights.size(), 6u);
  EXPECT_EQ(QueuePairs().size(), 2u);
  for (const auto& pair : QueuePairs()) EXPECT_EQ(pair.access, kRead | kWrite) << "no atomics";
}

// What a card writes into an accelerator is not flushed before its user is told.
TEST_F(VerbsIsolationTest, OnlyMemoryOfTheHostMayBeWrittenInAnyOrder) {
  ASSERT_TRUE(OpenPlain(OnFake(), &a_.device).ok());
  const auto own = Allocate(a_);
  const host::FileDescriptor file(memfd_create("accelerator", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kLargePage), 0);
  std::unique_ptr<Region> imported;
  const DeviceMemory memory = {file.get(), nullptr, kLargePage, ""};
  ASSERT_TRUE(a_.device->Import(memory, Access::kRemoteRead, &imported).ok());
  ASSERT_EQ(Regions().size(), 2u);
  for (const Memory& each : Regions()) {
    const bool relaxed = (each.access & IBV_ACCESS_RELAXED_ORDERING) != 0;
    EXPECT_EQ(relaxed, each.address == AddressOf(own->address()));
  }
}

// --- What callers may take ---

TEST_F(VerbsIsolationTest, CallersThatDoNotComeGetNoMoreMemoryThanABound) {
  ASSERT_TRUE(OpenPlain(OnFake(), &a_.device).ok());
  ASSERT_TRUE(OpenPlain(OnFake(), &b_.device).ok());
  ASSERT_TRUE(OpenChannel(&a_).ok());
  const std::string address = a_.channel->Address();
  ChannelAddress wants_much;
  ASSERT_TRUE(ChannelAddress::Decode(address, &wants_much).ok());
  wants_much.ring_size = kMaxRing;
  std::vector<Side> pending;  // the first one will come
  Status last;
  while (last.ok() && pending.size() < 200) {
    const bool first = pending.empty();
    Side& side = pending.emplace_back();
    ASSERT_TRUE(b_.device->Open(side.handler, &side.channel).ok());
    last = side.channel->Connect(first ? address : wants_much.Encode(), Role::kPassive);
  }
  EXPECT_EQ(last.code(), Code::kResourceExhausted);
  ExpectHas(last, "try again later");
  // One comes.
  ASSERT_TRUE(a_.channel->Connect(pending[0].channel->Address(), Role::kActive).ok());
  ASSERT_TRUE(PollUntil([&] { return pending[0].handler->connected; }));
  // One is given up.
  const uint64_t before = FakeStats().qps;
  pending[1].channel.reset();
  pending[1].handler.reset();
  ASSERT_TRUE(PollUntil([&] { return FakeStats().qps < before; }));
  for (int i = 0; i < 2; ++i) {
    Side side;
    side.handler = std::make_shared<Recorder>();
    ASSERT_TRUE(b_.device->Open(side.handler, &side.channel).ok());
    const Status connected =
        side.channel->Connect(i == 0 ? wants_much.Encode() : address, Role::kPassive);
    EXPECT_TRUE(connected.ok()) << connected.message();
    pending.push_back(std::move(side));
  }
  pending.clear();
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
