// What a fork() must not share between parent and child.
//
// Arena pages are MAP_SHARED, so without care a forked child's writes would change the parent's
// tensors, and a child that keeps a copy of a socket would hide its parent's death from the peers.
// In the child, guarded memory therefore becomes a private copy-on-write view of the same pages at
// the same addresses, and guarded descriptors are closed.
#pragma once

#include <cstddef>

namespace rdma_transport::fabric::host {

void GuardMemory(void* address, size_t length, int fd);
void UnguardMemory(void* address);
void GuardDescriptor(int fd);
void UnguardDescriptor(int fd);

// How many forks separate this process from the one that first asked. What was opened under
// another number belongs to an ancestor and must be left alone.
int ForkGeneration();

}  // namespace rdma_transport::fabric::host
