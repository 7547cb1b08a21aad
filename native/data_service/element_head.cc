#include "data_service/element_head.h"

#include <cstring>

namespace rdma_transport {
namespace {

constexpr uint64_t kMaxRank = 254;  // TensorFlow's

// Followed, for each component, by a ComponentHeader and its dimensions.
struct Header {
  int64_t element_index;
  uint32_t components;
  uint8_t end_of_sequence;
  uint8_t skip;
  uint16_t reserved;
};

struct ComponentHeader {
  ElementHead::Form form;
  uint32_t dtype;
  uint64_t rank;
};

template <typename T>
void Put(const T& value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
bool Take(std::string_view* rest, T* value) {
  if (rest->size() < sizeof(T)) return false;
  std::memcpy(value, rest->data(), sizeof(T));
  rest->remove_prefix(sizeof(T));
  return true;
}

bool TakeComponent(std::string_view* rest, ElementHead::Component* component) {
  ComponentHeader header;
  if (!Take(rest, &header) || header.rank > kMaxRank) return false;
  if (header.form != ElementHead::Form::kPlain && header.form != ElementHead::Form::kSerialized) {
    return false;
  }
  component->form = header.form;
  component->dtype = header.dtype;
  component->dims.resize(header.rank);
  for (int64_t& dim : component->dims) {
    if (!Take(rest, &dim)) return false;
  }
  return true;
}

}  // namespace

std::string ElementHead::Encode() const {
  std::string bytes;
  Put(Header{element_index, static_cast<uint32_t>(components.size()),
             static_cast<uint8_t>(end_of_sequence ? 1 : 0), static_cast<uint8_t>(skip ? 1 : 0), 0},
      &bytes);
  for (const Component& component : components) {
    Put(ComponentHeader{component.form, component.dtype, component.dims.size()}, &bytes);
    for (const int64_t dim : component.dims) Put(dim, &bytes);
  }
  return bytes;
}

bool ElementHead::Decode(std::string_view bytes, size_t payloads, ElementHead* head) {
  Header header;
  if (!Take(&bytes, &header) || header.components != payloads) return false;
  head->element_index = header.element_index;
  head->end_of_sequence = header.end_of_sequence != 0;
  head->skip = header.skip != 0;
  head->components.resize(payloads);
  for (Component& component : head->components) {
    if (!TakeComponent(&bytes, &component)) return false;
  }
  return bytes.empty();
}

}  // namespace rdma_transport
