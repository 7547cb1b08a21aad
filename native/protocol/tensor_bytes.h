// How many bytes a tensor has, for tensors that a peer describes.
#pragma once

#include <cstdint>
#include <vector>

namespace rdma_transport {

// Whether a tensor of these dimensions, with elements of `element_bytes`, has exactly `bytes`
// bytes. False for a negative dimension, and where the number of bytes is beyond 64 bits.
inline bool HasBytes(const std::vector<int64_t>& dims, uint64_t element_bytes, uint64_t bytes) {
  uint64_t product = element_bytes;
  bool empty = false;
  bool overflow = false;
  for (const int64_t dim : dims) {
    if (dim < 0) return false;
    empty |= dim == 0;
    overflow |= __builtin_mul_overflow(product, static_cast<uint64_t>(dim), &product);
  }
  return empty ? bytes == 0 : !overflow && product == bytes;
}

}  // namespace rdma_transport
