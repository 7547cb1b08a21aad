#include "collectives/mesh_seal.h"

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/random.h"

namespace rdma_transport::collectives {

Seal::Seal() : value_(Random64()) {}

SealPlace Seal::place() const {
  return {static_cast<uint64_t>(getpid()), reinterpret_cast<uint64_t>(&value_), value_.load()};
}

bool ReadSealed(const SealPlace& seal, uint64_t address, char* to, uint64_t length) {
  uint64_t value = 0;
  // The kernel reads one after the other, of one process.
  const iovec there[] = {{reinterpret_cast<void*>(address), length},
                         {reinterpret_cast<void*>(seal.address), sizeof(value)}};
  const iovec here[] = {{to, length}, {&value, sizeof(value)}};
  const ssize_t read =
      process_vm_readv(static_cast<pid_t>(seal.process), here, 2, there, 2, /*flags=*/0);
  return read == static_cast<ssize_t>(length + sizeof(value)) && value != 0 && value == seal.value;
}

}  // namespace rdma_transport::collectives
