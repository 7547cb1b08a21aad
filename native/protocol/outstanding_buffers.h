// The buffers that a peer may still read here. Each one is kept alive until the peer releases it or
// dies.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/owner_ref.h"

namespace rdma_transport {

// Thread-safe. IDs are never reused, so a duplicate or invented release is rejected.
class OutstandingBuffers {
 public:
  ~OutstandingBuffers() { ReleaseAll(); }
  uint64_t Add(OwnerRef owner);
  // Returns false if no such buffer is outstanding. Drops the owner without holding the lock.
  bool Release(uint64_t id);
  void ReleaseAll();
  size_t size() const;

 private:
  struct Slot {
    OwnerRef owner;
    uint32_t generation = 0;
  };

  mutable std::mutex mu_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace rdma_transport
