#include "data_service/element.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data_service/element_head.h"
#include "plugin/owned_buffer.h"
#include "plugin/wire_tensor.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/refcount.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// The memory of a reply's payloads.
struct Element {
  std::vector<tf::Tensor> tensors;
  std::vector<std::unique_ptr<std::string>> serialized;
};

absl::Status Malformed() { return absl::DataLossError("a malformed element of the data service"); }

rpc::Reply Failed(const std::string& what) {
  rpc::Reply reply;
  reply.status = Status(Code::kInternal, what);
  return reply;
}

absl::Status MakePlain(tf::DataType dtype, const tf::TensorShape& shape, rpc::Arrived* arrived,
                       tf::Tensor* tensor) {
  if (arrived->place != 0 && arrived->bytes > 0) {
    // This memory is not shared, so kernels may write results into it.
    tf::core::RefCountPtr<tf::TensorBuffer> buffer(new OwnedBuffer(
        arrived->data, arrived->bytes, std::move(arrived->owner), /*exclusive=*/true));
    *tensor = tf::Tensor(dtype, shape, std::move(buffer));
    return absl::OkStatus();
  }
  tf::Tensor copy(tf::cpu_allocator(), dtype, shape);
  if (!copy.IsInitialized()) return absl::ResourceExhaustedError("no memory for an element");
  if (arrived->bytes > 0) {
    std::memcpy(const_cast<char*>(copy.tensor_data().data()), arrived->data, arrived->bytes);
  }
  *tensor = std::move(copy);
  return absl::OkStatus();
}

absl::Status TakeComponent(const ElementHead::Component& component, rpc::Arrived* arrived,
                           tf::Tensor* tensor) {
  if (component.form == ElementHead::Form::kSerialized) {
    tf::TensorProto proto;
    if (arrived->bytes > INT32_MAX ||
        !proto.ParseFromArray(arrived->data, static_cast<int>(arrived->bytes)) ||
        !tensor->FromProto(proto)) {
      return Malformed();
    }
    return absl::OkStatus();
  }
  WireTensor described;
  if (!CheckWireTensor(component.dtype, component.dims, arrived->bytes, "", &described).ok()) {
    return Malformed();
  }
  return MakePlain(described.dtype, described.shape, arrived, tensor);
}

}  // namespace

rpc::Reply EncodeElement(tf::data::GetElementResult result) {
  rpc::Reply reply;
  auto element = std::make_unique<Element>();
  element->tensors = std::move(result.components);
  ElementHead head;
  head.element_index = result.element_index;
  head.end_of_sequence = result.end_of_sequence;
  head.skip = result.skip;
  for (const tf::Tensor& tensor : element->tensors) {
    const bool plain = tf::DataTypeCanUseMemcpy(tensor.dtype());
    ElementHead::Component& component = head.components.emplace_back();
    component.form = plain ? ElementHead::Form::kPlain : ElementHead::Form::kSerialized;
    component.dtype = static_cast<uint32_t>(tensor.dtype());
    for (int i = 0; i < tensor.dims(); ++i) component.dims.push_back(tensor.dim_size(i));
    if (plain) {
      const absl::string_view bytes = tensor.tensor_data();
      reply.payloads.push_back({bytes.data(), bytes.size()});
      continue;
    }
    tf::TensorProto proto;
    tensor.AsProtoTensorContent(&proto);
    auto bytes = std::make_unique<std::string>();
    if (!proto.SerializeToString(bytes.get())) {
      return Failed("a tensor of type " + tf::DataTypeString(tensor.dtype()) +
                    " takes more than 2 GiB when it is serialized");
    }
    reply.payloads.push_back({bytes->data(), bytes->size()});
    element->serialized.push_back(std::move(bytes));
  }
  reply.head = head.Encode();
  reply.owner = OwnerRef::Holding(std::move(element));
  return reply;
}

absl::Status DecodeElement(rpc::Response response, tf::data::GetElementResult* result) {
  ElementHead head;
  if (!ElementHead::Decode(response.head, response.payloads.size(), &head)) return Malformed();
  result->element_index = head.element_index;
  result->end_of_sequence = head.end_of_sequence;
  result->skip = head.skip;
  result->components.resize(head.components.size());
  for (size_t i = 0; i < result->components.size(); ++i) {
    const absl::Status taken =
        TakeComponent(head.components[i], &response.payloads[i], &result->components[i]);
    if (!taken.ok()) return taken;
  }
  return absl::OkStatus();
}

}  // namespace rdma_transport
