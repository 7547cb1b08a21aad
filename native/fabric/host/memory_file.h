// Unnamed shared memory: a memfd whose size is sealed, so that nobody can make a mapping of it
// fault.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::host {

// A new file of `length` bytes whose pages are all there: a shortage of memory is an error here and
// not a SIGBUS later.
Status CreateMemoryFile(const char* name, size_t length, FileDescriptor* file);

// Forbids any process to map the file writable from now on; existing mappings stay.
Status SealAgainstNewWriters(int fd);

// Whether a file that a peer sent has exactly `length` bytes for good, all of them there: touching
// them neither faults nor takes memory on this process's account. Of a file that is `writable` here
// the peer may still give pages back, which a write here then takes anew.
Status CheckMemoryFile(int fd, size_t length, bool writable);

// How much more memory this process could take: of the host and of its control groups.
size_t AvailableMemory();
// How much memory it may use in all.
size_t TotalMemory();

}  // namespace rdma_transport::fabric::host
