// The byte size of tensors that a peer describes.
#pragma once

#include <cstdint>
#include <vector>

namespace rdma_transport {

// Returns whether a tensor of these dimensions and `element_bytes` per element has exactly `bytes`
// bytes. Returns false if a dimension is negative or the size exceeds 64 bits.
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
