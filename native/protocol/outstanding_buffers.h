// The tensors that a peer may still read here, each kept alive until the peer releases it or dies.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "protocol/owner_ref.h"

namespace rdma_transport {

// Thread-safe. An id is used once: a release that comes twice, or is made up, is refused.
class OutstandingBuffers {
 public:
  ~OutstandingBuffers() { ReleaseAll(); }
  uint64_t Add(OwnerRef owner);
  // False: no such loan. The owner is let go without the lock held.
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
