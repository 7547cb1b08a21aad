// Bytes that are given in parts, as writev() takes them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>

namespace rdma_transport {

inline size_t TotalLength(const iovec* parts, int count) {
  size_t length = 0;
  for (int i = 0; i < count; ++i) length += parts[i].iov_len;
  return length;
}

// Returns a copy of all parts.
inline std::string Joined(const iovec* parts, int count) {
  std::string bytes;
  bytes.reserve(TotalLength(parts, count));
  for (int i = 0; i < count; ++i) {
    bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  return bytes;
}

}  // namespace rdma_transport
