// A rendezvous key hashed to 16 bytes with process-private seeds, so that keys need not be
// compared, even if a peer chooses them.
#pragma once

#include <cstdint>
#include <string_view>

namespace rdma_transport {

// A value. IDs of different keys are equal with negligible probability.
struct KeyId {
  uint64_t first = 0;
  uint64_t second = 0;

  bool operator==(const KeyId& other) const {
    return first == other.first && second == other.second;
  }
  // The ID of a whole key.
  static KeyId Of(std::string_view key);
  // The same ID from two parts: the edge's key, and the tensor's frame-and-iteration suffix.
  static KeyId OfEdge(std::string_view key_without_suffix);
  KeyId WithSuffix(std::string_view suffix) const;
};

struct KeyIdHash {
  size_t operator()(const KeyId& id) const { return id.first; }
};

}  // namespace rdma_transport
