// Pins registered memory for CUDA, so that GPUs copy from and to it by DMA, while the processor
// goes on. The driver's library is opened at run time. Not tested on a GPU, only with a pretend
// library.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::memory {

struct CudaDriver;

// Thread-safe. Never destroyed before the regions that it has pinned.
class CudaPinning {
 public:
  // Opens the driver `library` and its first GPU. Returns NotFound if there is no such library,
  // Unavailable, with the driver's reason, if there is no usable GPU.
  static Status Open(const std::string& library, std::unique_ptr<CudaPinning>* pinning);
  ~CudaPinning();

  // Pins the region until it ends. Returns ResourceExhausted, with the driver's reason, if that
  // fails: copies from and to the region then work all the same, but more slowly. Call it before
  // the region is shared between threads.
  Status Pin(fabric::Region* region) const;

 private:
  explicit CudaPinning(std::unique_ptr<CudaDriver> driver);

  const std::unique_ptr<CudaDriver> driver_;
};

}  // namespace rdma_transport::memory
