// Separates memory and descriptors of parent and child after fork().
//
// Arena pages are MAP_SHARED. Without a guard, a child's writes would change the parent's tensors,
// and a child's copy of a socket would hide the parent's death from its peers. In the child,
// guarded memory becomes a private copy-on-write view of the same pages at the same addresses, and
// guarded descriptors are closed.
//
// All functions are thread-safe.
#pragma once

#include <cstddef>

namespace rdma_transport::fabric::host {

// Guards `length` bytes at `address`, which map the beginning of `fd`. Call UnguardMemory() before
// they are unmapped.
void GuardMemory(void* address, size_t length, int fd);
void UnguardMemory(void* address);
// Guards a descriptor. Call UnguardDescriptor() before it is closed.
void GuardDescriptor(int fd);
void UnguardDescriptor(int fd);

// Returns the number of forks between this process and the one that called this function first. A
// resource opened in another generation belongs to an ancestor and must not be used.
int ForkGeneration();

}  // namespace rdma_transport::fabric::host
