// The limit on locked memory (RLIMIT_MEMLOCK): the kernel counts what a card may reach, and refuses
// the rest.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::verbs {

constexpr uint64_t kNoMemlockLimit = std::numeric_limits<uint64_t>::max();

// What a server locks before its first tensor: the first slab of the arena, and the rings (of
// `ring` bytes) of one peer.
constexpr uint64_t MemoryToBeginWith(uint64_t ring) { return (uint64_t{8} << 20) + 2 * ring; }

// Of this process, in bytes; a process with the capability IPC_LOCK has none.
uint64_t MemlockLimit();

// ResourceExhausted, with what to do, unless `needed` bytes fit.
Status CheckMemlock(uint64_t needed, uint64_t limit);

// Whether a refusal of `needed` bytes in all with `error` comes from `limit`.
bool MemlockExplains(int error, uint64_t needed, uint64_t limit);

// How to raise it: a line each for shell, systemd, Docker, Kubernetes and Slurm.
std::string MemlockHelp();

// RegistrationError() under a given limit.
Status RegistrationErrorUnder(uint64_t limit, int error, uint64_t length, uint64_t registered,
                              std::string_view on);

}  // namespace rdma_transport::fabric::verbs
