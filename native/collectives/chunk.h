// Where the chunks of a large array lie in a member's memory (board.h).
#pragma once

#include <cstddef>

#include "collectives/board.h"
#include "collectives/round.h"

namespace rdma_transport::collectives {

// Two stages hold four chunks, so that the steps of consecutive chunks overlap.
constexpr size_t kChunkBytes = kPartBytes;
static_assert(kChunkBytes % kLine == 0);
constexpr size_t kPlaces = 2 * kStageBytes / kChunkBytes;
constexpr int kResults = 2;  // the first stage of results

constexpr size_t ChunksOf(size_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

// Returns the offset in the stages of chunk `number` of an even or odd call.
constexpr size_t PlaceOf(size_t number, int parity) {
  return (static_cast<size_t>(parity) * 2 + number) % kPlaces * kChunkBytes;
}

// Divides a part into `parts` parts, and returns one of them.
inline Round Divide(const Round& whole, size_t parts, size_t number) {
  Round part = PartOf(whole.length, RoundUp((whole.length + parts - 1) / parts), number);
  part.begin += whole.begin;
  return part;
}

}  // namespace rdma_transport::collectives
