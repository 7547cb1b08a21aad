// Pinning of arenas, with a pretend CUDA driver.
#include "memory/cuda_pinning.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "arena_fixture.h"
#include "memory/arena.h"
#include "pretend_cuda/control.h"

namespace rdma_transport::memory {
namespace {

class CudaPinningTest : public testing::ArenaTest {
 protected:
  void SetUp() override {
    ArenaTest::SetUp();
    PretendCudaFail(0, 0);
  }
  void TearDown() override { EXPECT_EQ(PretendCudaMistakes(), 0); }

  static std::unique_ptr<CudaPinning> Opened() {
    std::shared_ptr<const CudaDriver> driver;
    std::unique_ptr<CudaPinning> pinning;
    Status opened = CudaDriver::Open(PRETEND_CUDA_LIBRARY, &driver);
    if (opened.ok()) opened = CudaPinning::Open(driver, &pinning);
    EXPECT_TRUE(opened.ok()) << opened.message();
    return pinning;
  }
};

TEST_F(CudaPinningTest, SlabsArePinnedWhileTheyExist) {
  const auto pinning = Opened();
  {
    Arena arena(device_.get(), uint64_t{256} << 20);
    arena.SetPrepare([&](fabric::Region* slab) { return pinning->Pin(slab); });
    char* first = arena.Allocate(9 << 20);
    char* second = arena.Allocate(100 << 20);
    ASSERT_NE(second, nullptr);
    EXPECT_EQ(PretendCudaRegisteredBytes(), arena.Stats().capacity_bytes);
    arena.Free(second);
    arena.ReleaseUnused();
    arena.ReleaseUnused();
    EXPECT_EQ(PretendCudaRegisteredBytes(), arena.Stats().capacity_bytes);
    EXPECT_LT(PretendCudaRegisteredBytes(), size_t{100} << 20);
    arena.Free(first);
  }
  EXPECT_EQ(PretendCudaRegisteredBytes(), 0u);
}

TEST_F(CudaPinningTest, WhatCannotBePinnedIsUsedAllTheSame) {
  const auto pinning = Opened();
  PretendCudaFail(0, 2);
  Arena arena(device_.get(), uint64_t{64} << 20);
  Status last;
  arena.SetPrepare([&](fabric::Region* slab) { return last = pinning->Pin(slab); });
  char* memory = arena.Allocate(9 << 20);
  EXPECT_NE(memory, nullptr);
  EXPECT_EQ(last.code(), Code::kResourceExhausted);
  EXPECT_NE(last.message().find("out of memory (CUDA error 2)"), std::string::npos);
  EXPECT_NE(last.message().find("ulimit -l"), std::string::npos);
  arena.Free(memory);
}

TEST_F(CudaPinningTest, WithoutADriverOrAGpuTheReasonIsSaid) {
  std::shared_ptr<const CudaDriver> driver;
  EXPECT_EQ(CudaDriver::Open("/nowhere/libcuda.so.1", &driver).code(), Code::kNotFound);
  PretendCudaFail(100, 0);
  const Status opened = CudaDriver::Open(PRETEND_CUDA_LIBRARY, &driver);
  EXPECT_EQ(opened.code(), Code::kUnavailable);
  EXPECT_EQ(opened.message(), "no GPU: no CUDA-capable device is detected (CUDA error 100)");
  EXPECT_EQ(driver, nullptr);
}

}  // namespace
}  // namespace rdma_transport::memory
