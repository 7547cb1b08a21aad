// The limit on locked memory (RLIMIT_MEMLOCK). Memory that a card can access counts against it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "base/status.h"

namespace rdma_transport::fabric::verbs {

constexpr uint64_t kNoMemlockLimit = std::numeric_limits<uint64_t>::max();

// Returns what a server locks before its first tensor: the first slab of the arena and, for one
// peer, two rings of `ring` bytes.
constexpr uint64_t MemoryToBeginWith(uint64_t ring) { return (uint64_t{8} << 20) + 2 * ring; }

// Returns for example "64 KiB".
std::string Bytes(uint64_t bytes);

// Returns the limit of this process in bytes, or kNoMemlockLimit with the capability IPC_LOCK.
uint64_t MemlockLimit();

// Returns ResourceExhausted, with a fix, unless `needed` bytes fit.
Status CheckMemlock(uint64_t needed, uint64_t limit);

// Returns whether `limit` explains why a total of `needed` bytes was refused with `error`.
bool MemlockExplains(int error, uint64_t needed, uint64_t limit);

// Returns how to raise the limit: a line each for shell, systemd, Docker, Kubernetes and Slurm.
std::string MemlockHelp();

}  // namespace rdma_transport::fabric::verbs
