// Memory of this process that peers may map: a memory file, mapped here for reading and writing.
#pragma once

#include <functional>
#include <memory>

#include "fabric/fabric.h"
#include "fabric/shm/file_descriptor.h"

namespace rdma_transport::fabric::shm {

class ShmRegion final : public Region {
 public:
  // `place` as in Device::Allocate(); `on_destroy` hears the key.
  static Status Create(uint64_t key, size_t length, Access access, void* place,
                       std::function<void(uint64_t)> on_destroy,
                       std::unique_ptr<ShmRegion>* region);
  ~ShmRegion() override;

  int fd() const { return file_.get(); }
  Access access() const { return access_; }

 private:
  ShmRegion() = default;

  FileDescriptor file_;
  Access access_ = Access::kRemoteRead;
  bool placed_ = false;  // inside an address range that belongs to the caller
  std::function<void(uint64_t)> on_destroy_;
};

}  // namespace rdma_transport::fabric::shm
