// The head of a reply: everything about an element except the bytes of its tensors. Uses no
// TensorFlow type; `dtype` is TensorFlow's number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rdma_transport {

// A value. What Decode() accepts, a peer may have chosen.
struct ElementHead {
  enum class Form : uint32_t {
    kPlain = 1,       // the payload is the tensor's bytes
    kSerialized = 2,  // the payload is a TensorProto
  };
  struct Component {
    Form form = Form::kPlain;
    uint32_t dtype = 0;
    std::vector<int64_t> dims;
  };

  int64_t element_index = 0;
  bool end_of_sequence = false;
  bool skip = false;
  std::vector<Component> components;

  std::string Encode() const;
  // Returns false if `bytes` is malformed or does not describe `payloads` components.
  static bool Decode(std::string_view bytes, size_t payloads, ElementHead* head);
};

}  // namespace rdma_transport
