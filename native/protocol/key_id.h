// A rendezvous key in 16 bytes: hashes with seeds that no other process knows, so that two keys of
// one step are told apart without being compared, whoever chose them.
#pragma once

#include <cstdint>
#include <string_view>

namespace rdma_transport {

struct KeyId {
  uint64_t first = 0;
  uint64_t second = 0;

  bool operator==(const KeyId& other) const {
    return first == other.first && second == other.second;
  }
  // Of a whole key.
  static KeyId Of(std::string_view key);
  // The same from its two parts: what an edge knows, and the tail of one tensor.
  static KeyId OfEdge(std::string_view key_without_tail);
  KeyId WithTail(std::string_view tail) const;
};

struct KeyIdHash {
  size_t operator()(const KeyId& id) const { return id.first; }
};

}  // namespace rdma_transport
