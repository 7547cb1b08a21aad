// A part of a collective's arrays, and how they are divided into such parts.
#pragma once

#include <algorithm>
#include <cstddef>

#include "collectives/board.h"
#include "collectives/types.h"

namespace rdma_transport::collectives {

// Whether only the root's array is read.
constexpr bool FromRoot(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kScatter;
}

// The bytes from `begin` on, `length` of them. The last round may be empty.
struct Round {
  size_t number = 0;
  size_t begin = 0;
  size_t length = 0;
};

constexpr size_t kLine = 64;  // bytes; a multiple of every element's size

constexpr size_t RoundUp(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Large arrays are divided into chunks, each of which has a place in a stage.
constexpr size_t kChunkBytes = kPartBytes;
static_assert(kChunkBytes % kLine == 0);
constexpr size_t ChunksOf(size_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

// Returns part `number` of `total` bytes in parts of `size` bytes.
inline Round PartOf(size_t total, size_t size, size_t number) {
  const size_t begin = std::min(total, number * size);
  return {number, begin, std::min(size, total - begin)};
}

// Returns part `number` of `parts` parts of `whole`.
inline Round Divide(const Round& whole, size_t parts, size_t number) {
  Round part = PartOf(whole.length, RoundUp((whole.length + parts - 1) / parts), number);
  part.begin += whole.begin;
  return part;
}

}  // namespace rdma_transport::collectives
