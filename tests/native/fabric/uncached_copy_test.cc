// Copies over more memory than the caches hold: wrong sizes are refused.

#include "fabric/uncached_copy.h"

#include <gtest/gtest.h>

namespace rdma_transport::fabric {
namespace {

TEST(UncachedCopyTest, BlocksThatDoNotFitAreRefused) {
  UncachedCopy copy;
  Nanos elapsed = 0;
  EXPECT_EQ(copy.Run(1, 1, &elapsed).code(), Code::kInvalidArgument) << "before Allocate()";
  ASSERT_TRUE(copy.Allocate(1).ok());
  EXPECT_EQ(copy.Run(0, 1, &elapsed).code(), Code::kInvalidArgument);
  EXPECT_EQ(copy.Run(uint64_t{1} << 40, 1, &elapsed).code(), Code::kInvalidArgument);
  // Odd blocks reach the end of the arrays, and begin anew.
  EXPECT_TRUE(copy.Run((1 << 20) + 1, 200, &elapsed).ok());
  EXPECT_GT(elapsed, 0);
}

TEST(UncachedCopyTest, WithoutMemoryItSaysSo) {
  UncachedCopy copy;
  EXPECT_EQ(copy.Allocate(~uint64_t{0}).code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace rdma_transport::fabric
