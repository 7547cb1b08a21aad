// Messages that another member of the same host reads where they lie, if its kernel permits that
// (process_vm_readv).
//
// Only the number of a process names the memory. So a reader also reads the sender's seal, a random
// value. It is intact as long as everything that was announced lies where it was: another process
// with the same number has no such value there, and the sender breaks it before it gives memory
// back that the reader has not taken.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdma_transport::collectives {

// Where a reader finds a seal. Sent in the memory layout of the sender.
struct SealPlace {
  uint64_t process = 0;
  uint64_t address = 0;
  uint64_t value = 0;  // 0: broken
};

// Thread-safe.
class Seal {
 public:
  Seal();
  ~Seal() { Break(); }
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  SealPlace place() const;
  // Afterwards, a read that has not ended returns false.
  void Break() { value_.store(0, std::memory_order_seq_cst); }

 private:
  std::atomic<uint64_t> value_;
};

// Copies bytes from `address` in the memory of the seal's process. Returns false if this is not
// permitted or not possible, or if the seal is broken; anything may be in `to` then.
bool ReadSealed(const SealPlace& seal, uint64_t address, char* to, uint64_t length);

}  // namespace rdma_transport::collectives
