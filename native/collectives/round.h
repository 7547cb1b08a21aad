// A part of a collective's arrays, and how they are divided into such parts.
#pragma once

#include <algorithm>
#include <cstddef>

namespace rdma_transport::collectives {

// The bytes from `begin` on, `length` of them. The last round may be empty.
struct Round {
  size_t number = 0;
  size_t begin = 0;
  size_t length = 0;
};

constexpr size_t kLine = 64;  // bytes; a multiple of every element's size

constexpr size_t RoundUp(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Returns part `number` of `total` bytes in parts of `size` bytes.
inline Round PartOf(size_t total, size_t size, size_t number) {
  const size_t begin = std::min(total, number * size);
  return {number, begin, std::min(size, total - begin)};
}

}  // namespace rdma_transport::collectives
