// What a hostile sender says of a tensor: an element of tf.data service as a reply brings it, and
// whether a shape, a type and a length contradict each other.

#include <string>
#include <utility>

#include "data_service/element_head.h"
#include "input.h"
#include "protocol/tensor_bytes.h"
#include "rpc/wire.h"

namespace rdma_transport::fuzz {
namespace {

// What is accepted can be read without leaving its memory.
void CheckBytes(const std::vector<int64_t>& dims, uint64_t element_bytes, uint64_t bytes) {
  bool beyond = false;
  bool empty = false;
  unsigned __int128 product = element_bytes;
  for (const int64_t dim : dims) {
    if (dim < 0) return Require(!HasBytes(dims, element_bytes, bytes));
    empty |= dim == 0;
    if (!beyond) product *= static_cast<uint64_t>(dim);
    beyond |= product >> 64 != 0;
  }
  const bool right = empty ? bytes == 0 : !beyond && product == bytes;
  Require(HasBytes(dims, element_bytes, bytes) == right);
}

void DecodeElement(std::string text) {
  rpc::Response response;
  if (!rpc::DecodeReply(std::move(text), &response).ok()) return;
  ElementHead head;
  if (!ElementHead::Decode(response.head, response.payloads.size(), &head)) return;
  ElementHead again;
  const std::string encoded = head.Encode();
  Require(ElementHead::Decode(encoded, head.components.size(), &again));
  Require(again.Encode() == encoded);
  volatile char sink = 0;
  for (size_t i = 0; i < head.components.size(); ++i) {
    const rpc::Arrived& arrived = response.payloads[i];
    if (arrived.place != 0 || !HasBytes(head.components[i].dims, 4, arrived.bytes)) continue;
    for (size_t at = 0; at < arrived.bytes; ++at) sink = sink ^ arrived.data[at];
  }
}

}  // namespace
}  // namespace rdma_transport::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rdma_transport;
  fuzz::Input input(data, size);
  const size_t kind = input.Below(4);
  if (kind == 0) {
    fuzz::DecodeElement(input.Bytes(size));
    return 0;
  }
  if (kind == 1) {
    // A reply around a head.
    ElementHead head;
    const size_t components = input.Below(4);
    rpc::Reply reply;
    const std::string body(64, 'b');
    for (size_t i = 0; i < components; ++i) {
      ElementHead::Component& component = head.components.emplace_back();
      component.form = static_cast<ElementHead::Form>(input.Below(4));
      component.dims.resize(input.Below(4));
      for (int64_t& dim : component.dims) dim = static_cast<int64_t>(input.Number());
      reply.payloads.push_back({body.data(), input.Below(65)});
    }
    reply.head = head.Encode();
    std::string text = rpc::EncodeReply(reply, std::vector<uint64_t>(components, 0));
    if (input.Flag()) text[input.Take<uint16_t>() % text.size()] ^= input.Take<char>();
    fuzz::DecodeElement(std::move(text));
    return 0;
  }
  const uint64_t element_bytes = input.Below(17);
  const uint64_t bytes = input.Number();
  std::vector<int64_t> dims(input.Below(6));
  for (int64_t& dim : dims) dim = static_cast<int64_t>(input.Number());
  fuzz::CheckBytes(dims, element_bytes, bytes);
  return 0;
}
