// All-reduces whose members may write each other's arrays, if they do not map them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/group.h"
#include "members.h"

namespace rdma_transport::collectives {
namespace {

using testing::kSoon;
using testing::Members;

constexpr size_t kBytes = size_t{24} << 20;  // of a member's arrays, both together

Patience Soon() { return {Now() + kSoon, nullptr}; }

// The values of an array repeat after so many.
constexpr size_t kPeriod = 1000;

std::vector<float> Pattern(int rank) {
  std::vector<float> values(kPeriod);
  for (size_t i = 0; i < kPeriod; ++i) values[i] = static_cast<float>((rank + 1) * (i + 1));
  return values;
}

// A member's memory for an input and an output, which it shares.
struct Arrays {
  Arrays(const Members& members, int rank, bool shared = true) {
    Status status =
        members.device(rank)->Allocate(kBytes, fabric::Access::kRemoteReadWrite, nullptr, &region);
    if (status.ok() && shared) {
      status = members.groups[rank]->mesh()->Share(region->key(), region->length(), true);
    }
    EXPECT_TRUE(status.ok()) << status.message();
  }
  float* input() const { return reinterpret_cast<float*>(region->address()); }
  float* output() const { return reinterpret_cast<float*>(region->address() + kBytes / 2); }

  std::unique_ptr<fabric::Region> region;
};

Call SumOf(const std::shared_ptr<Arrays>& arrays, size_t count, bool in_place) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kFloat32;
  call.count = count;
  call.input = reinterpret_cast<const char*>(arrays->input());
  call.output = reinterpret_cast<char*>(in_place ? arrays->input() : arrays->output());
  call.keeper = arrays;
  return call;
}

// Half the sum over all members, with their values.
Status Check(Group* group, const std::shared_ptr<Arrays>& arrays, size_t count, bool in_place) {
  const std::vector<float> own = Pattern(group->rank());
  std::vector<float> sum(kPeriod);
  for (int rank = 0; rank < group->size(); ++rank) {
    const std::vector<float> its = Pattern(rank);
    for (size_t i = 0; i < kPeriod; ++i) sum[i] += its[i] / 2;
  }
  Call call = SumOf(arrays, count, in_place);
  call.after = {2, 1.0};
  const auto each = [&](const auto& what) {
    for (size_t at = 0; at < count; at += kPeriod) what(at, std::min(kPeriod, count - at));
  };
  each([&](size_t at, size_t n) { std::copy_n(own.data(), n, arrays->input() + at); });
  RDMA_RETURN_IF_ERROR(group->Run(call, Soon()));
  EXPECT_EQ(arrays.use_count(), 2) << "the call has ended";  // with that of `call`
  Status status;
  each([&](size_t at, size_t n) {
    if (std::memcmp(call.output + at * sizeof(float), sum.data(), n * sizeof(float)) == 0) return;
    status = Status(Code::kInternal,
                    "wrong near " + std::to_string(at) + " of " + std::to_string(count));
  });
  return status;
}

class PlacedTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, PlacedTest, ::testing::Values(2, 3, 5));

// From one chunk to more of them than a replica has places, and none that ends with a chunk.
TEST_P(PlacedTest, SumsInPlaceAndNot) {
  const Members members(GetParam());
  const std::vector<Status> results = members.Each([&](int rank) {
    const auto arrays = std::make_shared<Arrays>(members, rank);
    for (const size_t count : {size_t{65'536}, size_t{100'003}, size_t{700'001}, kBytes / 8}) {
      for (const bool in_place : {false, true}) {
        RDMA_RETURN_IF_ERROR(Check(members.groups[rank].get(), arrays, count, in_place));
      }
    }
    return members.groups[rank]->Run(Call(), Soon());
  });
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.message();
}

// One member has shared nothing, so all stage their arrays.
TEST_P(PlacedTest, OneMemberStages) {
  const Members members(GetParam());
  const std::vector<Status> results = members.Each([&](int rank) {
    const auto arrays = std::make_shared<Arrays>(members, rank, /*shared=*/rank != 1);
    for (const bool in_place : {false, true}) {
      RDMA_RETURN_IF_ERROR(Check(members.groups[rank].get(), arrays, 700'001, in_place));
    }
    return members.groups[rank]->Run(Call(), Soon());
  });
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.message();
}

TEST(PlacedErrors, DifferentCallsLetTheArraysGo) {
  const Members members(2);
  members.Each([&](int rank) {
    const auto arrays = std::make_shared<Arrays>(members, rank);
    Group* const group = members.groups[rank].get();
    EXPECT_EQ(group->Run(SumOf(arrays, rank == 0 ? 100'000 : 200'000, false), Soon()).code(),
              Code::kInvalidArgument);
    EXPECT_EQ(arrays.use_count(), 1);
    return Check(group, arrays, 200'000, false);
  });
}

// The other member may have begun to write.
TEST(PlacedErrors, ArraysOfAFailedCallAreKeptUntilTheGroupEnds) {
  if (testing::OnShm()) GTEST_SKIP() << "the arrays are read in place";
  Members members(3);
  std::vector<std::weak_ptr<Arrays>> kept(3);
  members.Each([&](int rank) {
    const auto arrays = std::make_shared<Arrays>(members, rank);
    kept[rank] = arrays;
    RDMA_RETURN_IF_ERROR(members.groups[rank]->Run(Call(), Soon()));
    if (rank == 2) return Status();
    Call call = SumOf(arrays, 500'000, false);
    const Status status = members.groups[rank]->Run(call, {Now() + kSecond / 5, nullptr});
    EXPECT_FALSE(status.ok());
    return status;
  });
  EXPECT_FALSE(kept[0].expired());
  EXPECT_FALSE(kept[1].expired());
  members.groups.clear();
  EXPECT_TRUE(kept[2].expired());
}

}  // namespace
}  // namespace rdma_transport::collectives
