// Unnamed shared memory: a memfd with a sealed size, so that no process can make accesses to a
// mapping fault.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::host {

// Creates a file of `length` bytes and allocates all its pages, so that a shortage of memory is an
// error here and not a SIGBUS later. Returns ResourceExhausted if the memory is not available.
Status CreateMemoryFile(const char* name, size_t length, FileDescriptor* file);

// Prevents all processes from creating writable mappings. Existing mappings stay writable.
Status SealAgainstNewWriters(int fd);

// Returns OK if a file received from a peer has exactly `length` bytes, sealed and allocated:
// accesses neither fault nor charge memory to this process. A peer can still free pages of a file
// that is `writable` here, and a write here then allocates them again.
Status CheckMemoryFile(int fd, size_t length, bool writable);

// Returns the bytes that this process can still allocate within the limits of the host and its
// control groups.
size_t AvailableMemory();
// Returns the bytes that this process may use in total.
size_t TotalMemory();

}  // namespace rdma_transport::fabric::host
