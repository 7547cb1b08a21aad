#include "collectives/group.h"

#include <gtest/gtest.h>

#include <numeric>

#include "collectives/call_queue.h"
#include "members.h"

namespace rdma_transport::collectives {
namespace {

using testing::kSoon;
using testing::Members;

Patience Soon() { return {Now() + kSoon, nullptr}; }

// Integers of float are exact, and differ by rank and place.
float Value(int rank, size_t i) { return static_cast<float>((rank + 1) * (i % 1000 + 1)); }

std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

float Total(int size, size_t i) {
  float total = 0;
  for (int rank = 0; rank < size; ++rank) total += Value(rank, i);
  return total;
}

Call Floats(Collective collective, size_t count, const float* input, float* output) {
  Call call;
  call.collective = collective;
  call.dtype = DType::kFloat32;
  call.count = count;
  call.input = reinterpret_cast<const char*>(input);
  call.output = reinterpret_cast<char*>(output);
  return call;
}

void ExpectOk(const std::vector<Status>& results) {
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.message();
}

class GroupTest : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Sizes, GroupTest, ::testing::Values(1, 2, 3, 5));

const size_t kCounts[] = {0, 1, 7, 1000, 9001, 70'000};
constexpr size_t kLarge = 600'011;  // more chunks and rounds than stages

// Runs an all-reduce, into another array and in place, and checks the values.
Status CheckAllReduce(Group* group, size_t count) {
  std::vector<float> input = Values(group->rank(), count);
  std::vector<float> output(count);
  RDMA_RETURN_IF_ERROR(
      group->Run(Floats(Collective::kAllReduce, count, input.data(), output.data()), Soon()));
  RDMA_RETURN_IF_ERROR(
      group->Run(Floats(Collective::kAllReduce, count, input.data(), input.data()), Soon()));
  for (size_t i = 0; i < count; ++i) {
    const float total = Total(group->size(), i);
    EXPECT_EQ(output[i], total) << "element " << i << " of " << count;
    EXPECT_EQ(input[i], total) << "element " << i << " of " << count;
    if (::testing::Test::HasFailure()) break;
  }
  return OkStatus();
}

// Broadcasts from each member, and checks the values.
Status CheckBroadcast(Group* group, size_t count) {
  for (int root = 0; root < group->size(); ++root) {
    std::vector<float> values = Values(group->rank(), count);
    Call call = Floats(Collective::kBroadcast, count, nullptr, values.data());
    call.root = root;
    RDMA_RETURN_IF_ERROR(group->Run(call, Soon()));
    EXPECT_EQ(values, Values(root, count));
  }
  return OkStatus();
}

// Gathers to, scatters from and reduces to each member, and checks the values.
Status CheckRooted(Group* group, size_t count) {
  const int size = group->size();
  const int rank = group->rank();
  for (int root = 0; root < size; ++root) {
    std::vector<float> part = Values(rank, count);
    std::vector<float> whole(rank == root ? count * static_cast<size_t>(size) : 0);
    float* const out = rank == root ? whole.data() : nullptr;
    Call call = Floats(Collective::kGather, count, part.data(), out);
    call.root = root;
    RDMA_RETURN_IF_ERROR(group->Run(call, Soon()));
    for (size_t i = 0; i < whole.size() && !::testing::Test::HasFailure(); ++i) {
      EXPECT_EQ(whole[i], Value(static_cast<int>(i / count), i % count));
    }
    std::fill(part.begin(), part.end(), 0);
    call = Floats(Collective::kScatter, count, out, part.data());
    call.root = root;
    RDMA_RETURN_IF_ERROR(group->Run(call, Soon()));
    EXPECT_EQ(part, Values(rank, count));
    call = Floats(Collective::kReduce, count, part.data(), rank == root ? part.data() : nullptr);
    call.root = root;
    RDMA_RETURN_IF_ERROR(group->Run(call, Soon()));
    for (size_t i = 0; i < count && rank == root && !::testing::Test::HasFailure(); ++i) {
      EXPECT_EQ(part[i], Total(size, i));
    }
  }
  return OkStatus();
}

// The bytes that a member sends to another one: some none, and some many.
std::string PieceOf(size_t count, int from, int to) {
  return std::string(count * static_cast<size_t>(from) / static_cast<size_t>(to + 1),
                     static_cast<char>('a' + from * 7 + to));
}

// Exchanges pieces of different sizes; those of `odd` are not what the others expect.
Status Exchanges(Group* group, size_t count, int odd = -1) {
  Call call;
  call.collective = Collective::kExchange;
  std::vector<std::string> sent;
  std::vector<std::string> received;
  for (int peer = 0; peer < group->size(); ++peer) {
    sent.push_back(PieceOf(count, group->rank(), peer));
    received.push_back(std::string(PieceOf(count, peer, group->rank()).size(), '-'));
    if (group->rank() == odd && peer != odd) sent.back() += "!";
  }
  for (int peer = 0; peer < group->size(); ++peer) {
    call.pieces.push_back(
        {sent[peer].data(), received[peer].data(), sent[peer].size(), received[peer].size()});
  }
  RDMA_RETURN_IF_ERROR(group->Run(call, Soon()));
  for (int peer = 0; peer < group->size(); ++peer) {
    EXPECT_TRUE(received[peer] == PieceOf(count, peer, group->rank())) << peer;
  }
  return OkStatus();
}

// Runs all other collectives, and checks the values.
Status CheckOthers(Group* group, size_t count) {
  const int rank = group->rank();
  const auto n = static_cast<size_t>(group->size());
  std::vector<float> whole(count * n);
  std::vector<float> pieces(count * n);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = Value(rank, i);
  std::vector<float> part = Values(rank, count);
  RDMA_RETURN_IF_ERROR(
      group->Run(Floats(Collective::kAllGather, count, part.data(), whole.data()), Soon()));
  for (size_t i = 0; i < whole.size() && !::testing::Test::HasFailure(); ++i) {
    EXPECT_EQ(whole[i], Value(static_cast<int>(i / count), i % count));
  }
  RDMA_RETURN_IF_ERROR(
      group->Run(Floats(Collective::kReduceScatter, count, pieces.data(), part.data()), Soon()));
  for (size_t i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    EXPECT_EQ(part[i], Total(group->size(), static_cast<size_t>(rank) * count + i));
  }
  RDMA_RETURN_IF_ERROR(
      group->Run(Floats(Collective::kAllToAll, count, pieces.data(), pieces.data()), Soon()));
  for (size_t i = 0; i < pieces.size() && !::testing::Test::HasFailure(); ++i) {
    const size_t from = static_cast<size_t>(rank) * count + i % count;
    EXPECT_EQ(pieces[i], Value(static_cast<int>(i / count), from));
  }
  RDMA_RETURN_IF_ERROR(CheckBroadcast(group, count));
  RDMA_RETURN_IF_ERROR(CheckRooted(group, count));
  RDMA_RETURN_IF_ERROR(Exchanges(group, count));
  return group->Run(Call(), Soon());
}

TEST_P(GroupTest, AllReduceSumsInPlaceAndNot) {
  const Members members(size());
  ExpectOk(members.Each([&](int rank) {
    for (const size_t count : kCounts) {
      RDMA_RETURN_IF_ERROR(CheckAllReduce(members.groups[rank].get(), count));
    }
    return CheckAllReduce(members.groups[rank].get(), kLarge);
  }));
}

TEST_P(GroupTest, OtherCollectives) {
  const Members members(size());
  ExpectOk(members.Each([&](int rank) {
    for (const size_t count : kCounts) {
      RDMA_RETURN_IF_ERROR(CheckOthers(members.groups[rank].get(), count));
    }
    return CheckOthers(members.groups[rank].get(), kLarge / static_cast<size_t>(size()));
  }));
}

// Some members map each other's memory, and others do not.
TEST(MixedGroup, AllCollectives) {
  if (!testing::OnShm()) GTEST_SKIP() << "over shared memory and the loopback fabric only";
  const Members members({{"shm", "loopback"}, {"loopback"}, {"shm", "loopback"}, {"loopback"}});
  EXPECT_FALSE(members.groups[0]->mesh()->Remote(2));
  EXPECT_TRUE(members.groups[0]->mesh()->Remote(1));
  EXPECT_TRUE(members.groups[1]->mesh()->Remote(3));
  ExpectOk(members.Each([&](int rank) {
    Group* const group = members.groups[rank].get();
    for (const size_t count : {size_t{3}, kLarge / 3}) {
      RDMA_RETURN_IF_ERROR(CheckAllReduce(group, count));
      RDMA_RETURN_IF_ERROR(CheckOthers(group, count));
    }
    return OkStatus();
  }));
}

// Hosts of several members, which combine on their host first. Ranks of a host need not be
// adjacent.
class HostsTest : public ::testing::TestWithParam<std::vector<std::string>> {
 protected:
  void SetUp() override {
    if (!testing::OnShm()) GTEST_SKIP() << "over shared memory and the loopback fabric only";
    for (const std::string& host : GetParam()) fabrics_.push_back({"shm@" + host, "loopback"});
  }
  std::vector<testing::FabricNames> fabrics_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, HostsTest,
                         ::testing::Values(std::vector<std::string>{"a", "a", "b", "b"},
                                           std::vector<std::string>{"a", "b", "c", "c", "b", "a"},
                                           std::vector<std::string>{"a", "b", "b", "a", "a", "b"},
                                           std::vector<std::string>{"a", "b", "a"},
                                           std::vector<std::string>{"a", "b", "b", "a", "b"}));

TEST_P(HostsTest, AllCollectives) {
  const Members members(fabrics_);
  ExpectOk(members.Each([&](int rank) {
    Group* const group = members.groups[rank].get();
    for (const size_t count : {size_t{3}, size_t{20'001}, size_t{70'000}, kLarge}) {
      RDMA_RETURN_IF_ERROR(CheckAllReduce(group, count));
      RDMA_RETURN_IF_ERROR(CheckOthers(group, count / 3));
    }
    return CheckBroadcast(group, kLarge);
  }));
}

// Every member has the same bits, in each run.
TEST_P(HostsTest, ASumOfFloatsHasTheSameBitsEverywhere) {
  const Members members(fabrics_);
  std::vector<std::vector<float>> sums(fabrics_.size());
  std::vector<int> differences(fabrics_.size());
  ExpectOk(members.Each([&](int rank) {
    for (int run = 0; run < 3; ++run) {
      std::vector<float> values(kLarge);
      for (size_t i = 0; i < kLarge; ++i)
        values[i] = 1.0F / static_cast<float>(rank * 31 + i % 97 + 1);
      RDMA_RETURN_IF_ERROR(members.groups[rank]->Run(
          Floats(Collective::kAllReduce, kLarge, values.data(), values.data()), Soon()));
      if (run > 0 && values != sums[rank]) ++differences[rank];
      sums[rank] = std::move(values);
    }
    return OkStatus();
  }));
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    EXPECT_EQ(differences[rank], 0);
    EXPECT_TRUE(sums[rank] == sums[0]) << "rank " << rank;
  }
}

TEST_P(GroupTest, RegisteredArraysAreReadInPlace) {
  const Members members(size());
  constexpr size_t kCount = 1 << 18;
  ExpectOk(members.Each([&](int rank) {
    Group& group = *members.groups[rank];
    std::unique_ptr<fabric::Region> region;
    RDMA_RETURN_IF_ERROR(members.device(rank)->Allocate(
        size_t{2} << 20, fabric::Access::kRemoteRead, nullptr, &region));
    RDMA_RETURN_IF_ERROR(group.mesh()->Share(region->key(), region->length()));
    auto* const array = reinterpret_cast<float*>(region->address());
    // In the second round, one member's array is not registered.
    for (int round = 0; round < 2; ++round) {
      std::vector<float> other = Values(rank, kCount);
      float* const used = round == 1 && rank == 0 ? other.data() : array;
      std::copy(other.begin(), other.end(), used);
      RDMA_RETURN_IF_ERROR(group.Run(Floats(Collective::kAllReduce, kCount, used, used), Soon()));
      for (size_t i = 0; i < kCount; ++i) {
        if (used[i] != Total(size(), i))
          return Status(Code::kInternal, "wrong at " + std::to_string(i));
      }
    }
    group.mesh()->Withdraw(region->key());
    return group.Run(Call(), Soon());
  }));
}

TEST(GroupErrors, DifferentCallsFailOnEveryRankAndTheGroupGoesOn) {
  const Members members(3);
  const std::vector<Status> results = members.Each([&](int rank) {
    std::vector<float> values(200'000, 1);
    Call call = Floats(Collective::kAllReduce, 100'000, values.data(), values.data());
    if (rank == 1) call.count = 3;
    const Status size = members.groups[rank]->Run(call, Soon());
    EXPECT_EQ(size.code(), Code::kInvalidArgument);
    call.count = 5;
    if (rank == 2) call.op = ReduceOp::kMax;
    EXPECT_EQ(members.groups[rank]->Run(call, Soon()).code(), Code::kInvalidArgument);
    call.op = ReduceOp::kSum;
    if (rank == 0) call.collective = Collective::kBroadcast;
    EXPECT_EQ(members.groups[rank]->Run(call, Soon()).code(), Code::kInvalidArgument);
    call.collective = Collective::kAllReduce;
    if (rank == 0) call.dtype = DType::kInt32;
    EXPECT_EQ(members.groups[rank]->Run(call, Soon()).code(), Code::kInvalidArgument);
    call.dtype = DType::kFloat32;
    EXPECT_TRUE(members.groups[rank]->Run(call, Soon()).ok());
    EXPECT_EQ(values[4], 3);
    return size;
  });
  EXPECT_NE(results[0].message().find("rank 1 called all_reduce of 3 float32 (sum)"),
            std::string::npos)
      << results[0].message();
}

TEST(GroupErrors, APieceOfAnotherSizeFailsOnEveryRankAndTheGroupGoesOn) {
  const Members members(3);
  const std::vector<Status> results = members.Each([&](int rank) {
    Group* const group = members.groups[rank].get();
    const Status status = Exchanges(group, 500'000, /*odd=*/1);
    RDMA_RETURN_IF_ERROR(Exchanges(group, 500'000));
    RDMA_RETURN_IF_ERROR(Exchanges(group, 5));
    return status;
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("expects 500000 bytes of rank 1, which sends 500001"),
              std::string::npos)
        << status.message();
  }
}

TEST(GroupErrors, InvalidCalls) {
  const Members members(1);
  Call call;
  call.collective = Collective::kBroadcast;
  call.root = 1;
  EXPECT_EQ(members.groups[0]->Run(call, Soon()).code(), Code::kInvalidArgument);
  call.root = 0;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kComplex64;
  call.op = ReduceOp::kMin;
  EXPECT_EQ(members.groups[0]->Run(call, Soon()).code(), Code::kInvalidArgument);
  call.op = ReduceOp::kSum;
  call.count = ~uint64_t{0};
  EXPECT_EQ(members.groups[0]->Run(call, Soon()).code(), Code::kInvalidArgument);
}

TEST(GroupErrors, AMemberThatIsGoneEndsTheCallOfAllOthers) {
  Members members(3);
  const std::vector<Status> results = members.Each([&](int rank) {
    if (rank == 1) {
      members.groups[1].reset();
      return OkStatus();
    }
    const Status status = members.groups[rank]->Run(Call(), Soon());
    EXPECT_EQ(members.groups[rank]->Run(Call(), Soon()).message(), status.message());
    return status;
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].code(), Code::kUnavailable);
    EXPECT_NE(results[rank].message().find("rank 1 is gone"), std::string::npos)
        << results[rank].message();
  }
}

// The third member is connected to both, and would wait as long as they live.
TEST(GroupErrors, AConnectionOfTwoThatBreaksEndsTheCallsOfAll) {
  if (!testing::OnShm()) GTEST_SKIP() << "over the loopback fabric only";
  const Members members(std::vector<testing::FabricNames>(3, {"loopback"}));
  ExpectOk(members.Each([&](int rank) { return members.groups[rank]->Run(Call(), Soon()); }));
  members.Cut(0, 1);
  const std::vector<Status> results = members.Each([&](int rank) {
    for (int i = 0; i < 2; ++i) {  // two may have announced the step before they failed
      const Status status = members.groups[rank]->Run(Call(), Soon());
      if (!status.ok()) return status;
    }
    return OkStatus();
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_NE(status.message().find("the cable was cut"), std::string::npos) << status.message();
  }
}

TEST(GroupErrors, ATimeoutEndsTheGroup) {
  Members members(2);
  const Status status = members.groups[0]->Run(Call(), {Now() + kMillisecond, nullptr});
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.message();
  EXPECT_NE(status.message().find("rank 1"), std::string::npos);
  EXPECT_EQ(members.groups[1]->mesh()->Lost(1).code(), Code::kOk);
  // Rank 0 took the first step, so this ends with the second.
  members.groups[1]->Run(Call(), Soon()).IgnoreError();
  EXPECT_EQ(members.groups[1]->Run(Call(), Soon()).code(), Code::kUnavailable);
}

// Writes may not have ended when the group, and then the device, is destroyed.
TEST(GroupErrors, LeavingInTheMiddleOfACall) {
  for (const Nanos patience : {1, 2, 4, 8, 16}) {
    Members members(3);
    members.Each([&](int rank) {
      std::vector<float> values(kLarge, 1);
      const Call call = Floats(Collective::kAllReduce, values.size(), values.data(), values.data());
      members.groups[rank]->Run(call, {Now() + patience * kMillisecond, nullptr}).IgnoreError();
      members.groups[rank].reset();
      return OkStatus();
    });
  }
}

TEST(GroupErrors, AWaitCanBeInterrupted) {
  Members members(2);
  const Status status = members.groups[0]->Run(Call(), {INT64_MAX, [] { return true; }});
  EXPECT_EQ(status.code(), Code::kCancelled) << status.message();
}

TEST(CallQueueTest, RunsCallsInOrder) {
  Members members(2);
  ExpectOk(members.Each([&](int rank) {
    CallQueue queue(std::move(members.groups[rank]));
    std::vector<float> values(5000, 1);
    const Call call = Floats(Collective::kAllReduce, values.size(), values.data(), values.data());
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; i < 4; ++i) requests.push_back(queue.Start(call, INT64_MAX));
    RDMA_RETURN_IF_ERROR(queue.Run(call, Soon()));
    EXPECT_EQ(values.back(), 32);
    bool waits = false;
    for (const auto& request : requests) {
      EXPECT_TRUE(request->done());
      RDMA_RETURN_IF_ERROR(request->Wait(Soon(), &waits));
    }
    const auto last = queue.Start(call, INT64_MAX);
    RDMA_RETURN_IF_ERROR(last->Wait(Soon(), &waits));
    EXPECT_EQ(values.front(), 64);
    RDMA_RETURN_IF_ERROR(queue.Run(Call(), Soon()));
    return queue.mesh()->Drain(nullptr);
  }));
}

TEST(CallQueueTest, ClosingEndsWhatIsPending) {
  Members members(2);
  std::vector<float> values(5000, 1);
  const Call call = Floats(Collective::kAllReduce, values.size(), values.data(), values.data());
  std::vector<std::shared_ptr<Request>> requests;
  {
    CallQueue queue(std::move(members.groups[0]));
    for (int i = 0; i < 3; ++i) requests.push_back(queue.Start(call, INT64_MAX));
    bool waits = false;
    EXPECT_EQ(requests[0]->Wait({Now() + kMillisecond, nullptr}, &waits).code(),
              Code::kDeadlineExceeded);
    EXPECT_TRUE(waits);
  }
  for (const auto& request : requests) {
    bool waits = false;
    EXPECT_FALSE(request->Wait(Soon(), &waits).ok());
    EXPECT_FALSE(waits);
  }
}

TEST(CallQueueTest, NothingRunsAfterClosing) {
  Members members(2);
  std::vector<float> values(5000, 1);
  const Call call = Floats(Collective::kAllReduce, values.size(), values.data(), values.data());
  CallQueue queue(std::move(members.groups[0]));
  const auto pending = queue.Start(call, INT64_MAX);
  queue.Close("enough");
  EXPECT_TRUE(pending->done());
  const auto late = queue.Start(call, INT64_MAX);
  EXPECT_TRUE(late->done());
  bool waits = false;
  EXPECT_EQ(late->Wait(Soon(), &waits).code(), Code::kCancelled);
  EXPECT_FALSE(queue.Run(call, Soon()).ok());
}

}  // namespace
}  // namespace rdma_transport::collectives
