// Pins registered memory for CUDA, so that GPUs copy from and to it by DMA, while the processor
// goes on.
#pragma once

#include <memory>
#include <utility>

#include "base/status.h"
#include "fabric/fabric.h"
#include "memory/cuda_driver.h"

namespace rdma_transport::memory {

// Thread-safe. Never destroyed before the regions that it has pinned.
class CudaPinning {
 public:
  // Opens the driver's first GPU. Returns Unavailable, with the driver's reason, if it is not
  // usable.
  static Status Open(std::shared_ptr<const CudaDriver> driver,
                     std::unique_ptr<CudaPinning>* pinning);

  // Pins the region until it ends. Returns ResourceExhausted, with the driver's reason, if that
  // fails: copies from and to the region then work all the same, but more slowly. Call it before
  // the region is shared between threads.
  Status Pin(fabric::Region* region) const;

 private:
  CudaPinning(std::shared_ptr<const CudaDriver> driver, void* context)
      : driver_(std::move(driver)), context_(context) {}

  const std::shared_ptr<const CudaDriver> driver_;
  void* const context_;  // the GPU's primary one, which TensorFlow uses, too
};

}  // namespace rdma_transport::memory
