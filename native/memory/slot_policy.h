// How many buffers the static edges use. What the plan charges, what a sender requests and what a
// receiver provides are decided here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace rdma_transport::memory {

// What an edge needs: one slot in flight or in use, and one for the next step.
constexpr uint32_t kSlots = 2;
// In a loop TensorFlow may run a bounded number of iterations ahead.
constexpr uint32_t kLoopSlots = 4;
constexpr uint32_t SlotsOfEdge(bool in_loop) { return in_loop ? kLoopSlots : kSlots; }

// The size of `slots` slots, or UINT64_MAX.
constexpr uint64_t BytesOfSlots(uint64_t bytes, uint32_t slots) {
  constexpr uint64_t kAlignment = 64;
  uint64_t all = 0;
  if (__builtin_add_overflow(bytes, kAlignment - 1, &all)) return UINT64_MAX;
  return __builtin_mul_overflow(all / kAlignment * kAlignment, slots, &all) ? UINT64_MAX : all;
}

// The receiver-side slots that a pool starts with, which its edges share: one for each, because all
// may be in flight or in use at once. In a loop this also holds for tensors of several iterations,
// for which an edge needs `slots` slots. A pool gets one more whenever none is free, as when the
// tensors of two steps overlap.
constexpr uint32_t kMaxReceiverSlotsPerEdge = 6;
constexpr uint32_t kMaxReceiverSlots = 4096;
constexpr uint32_t MaxReceiverSlots(uint32_t edges) {
  return std::min(edges, kMaxReceiverSlots / kMaxReceiverSlotsPerEdge) * kMaxReceiverSlotsPerEdge;
}
constexpr uint32_t SlotsOfPool(uint32_t edges, uint32_t slots) {
  const uint32_t iterations = slots > kSlots ? slots - 1 : 0;
  return std::min(edges + iterations, MaxReceiverSlots(edges));
}

// The blocks of one set, from which all pools of the set allocate. It grows when all are in use;
// beyond that a pool moves to another set.
constexpr size_t kMaxPoolBlocks = 12;
// A site that still finds no block after that many sets is one whose buffers show no pattern. The
// arena allocates them.
constexpr int kMaxPoolMoves = 4;
// What a pool takes from the arena before its site allocates. Larger blocks are taken when they are
// needed, which is often fewer than the slots of the edge.
constexpr size_t kReservedBytes = size_t{16} << 20;
constexpr size_t ReservedBlocks(size_t bytes, size_t slots) {
  return bytes * slots <= kReservedBytes ? slots : kReservedBytes / bytes;
}
// Larger blocks go back to the system when no allocation needed them for this long, and for up to
// twice as long.
constexpr Nanos kTrimInterval = 10 * kSecond;
// How long an edge that no registered graph planned keeps its slots and blocks without a tensor,
// while other edges get new ones. The cost of agreeing on them again does not depend on their size,
// so they are kept for less time if these take more of the arena.
constexpr Nanos KeptFor(uint64_t taken, uint64_t limit) {
  if (taken >= limit) return 0;
  return static_cast<Nanos>(static_cast<double>(kTrimInterval) *
                            (1 - static_cast<double>(taken) / static_cast<double>(limit)));
}
// An update allocates a variable's next buffer while the current one, which joins its pool, is
// being read.
constexpr uint32_t kUpdateBlocks = 1;
// The allocation sites of one edge that get pools, such as the branches of a conditional.
constexpr size_t kMaxPoolsPerEdge = 4;

// The most sender-side slots of an edge: the blocks of one set and a few buffers from elsewhere.
constexpr size_t kMaxSlots = 16;
static_assert(kMaxPoolBlocks <= kMaxSlots);
static_assert(kLoopSlots <= kMaxReceiverSlotsPerEdge, "a receiver provides what is requested");

}  // namespace rdma_transport::memory
