#include "data_service/element.h"

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/leased_buffer.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// The head of a reply: an ElementHeader, and for each component a ComponentHeader and its
// dimensions.
struct ElementHeader {
  int64_t element_index;
  uint32_t components;
  uint8_t end_of_sequence;
  uint8_t skip;
  uint16_t reserved;
};

enum class Form : uint32_t { kPlain = 1, kSerialized = 2 };

struct ComponentHeader {
  Form form;
  uint32_t dtype;
  uint64_t rank;
};

// What the payloads of a reply lie in.
struct Element {
  std::vector<tf::Tensor> tensors;
  std::vector<std::unique_ptr<std::string>> serialized;
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

absl::Status Malformed() { return absl::DataLossError("a malformed element of the data service"); }

exchange::Reply Failed(const std::string& what) {
  exchange::Reply reply;
  reply.status = Status(Code::kInternal, what);
  return reply;
}

// How many bytes a plain tensor has; false if that cannot be.
bool BytesOf(tf::DataType dtype, const tf::TensorShape& shape, uint64_t* bytes) {
  const auto elements = static_cast<uint64_t>(shape.num_elements());
  return !__builtin_mul_overflow(elements, static_cast<uint64_t>(tf::DataTypeSize(dtype)), bytes);
}

absl::Status MakePlain(tf::DataType dtype, const tf::TensorShape& shape, exchange::Arrived* arrived,
                       tf::Tensor* tensor) {
  if (arrived->place != 0 && arrived->bytes > 0) {
    // Nobody else has this memory: kernels may write their results into it.
    tf::core::RefCountPtr<tf::TensorBuffer> buffer(new LeasedBuffer(
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

absl::Status TakeComponent(std::string_view* head, exchange::Arrived* arrived, tf::Tensor* tensor) {
  ComponentHeader header;
  if (!Take(head, &header) || header.rank > tf::TensorShape::MaxDimensions() ||
      !tf::DataType_IsValid(static_cast<int>(header.dtype))) {
    return Malformed();
  }
  std::vector<int64_t> dims(header.rank);
  for (int64_t& dim : dims) {
    if (!Take(head, &dim)) return Malformed();
  }
  if (header.form == Form::kSerialized) {
    tf::TensorProto proto;
    if (arrived->bytes > INT32_MAX ||
        !proto.ParseFromArray(arrived->data, static_cast<int>(arrived->bytes)) ||
        !tensor->FromProto(proto)) {
      return Malformed();
    }
    return absl::OkStatus();
  }
  const auto dtype = static_cast<tf::DataType>(header.dtype);
  tf::TensorShape shape;
  uint64_t bytes = 0;
  if (header.form != Form::kPlain || !tf::DataTypeCanUseMemcpy(dtype) ||
      !tf::TensorShape::BuildTensorShape(dims, &shape).ok() || !BytesOf(dtype, shape, &bytes) ||
      bytes != arrived->bytes) {
    return Malformed();
  }
  return MakePlain(dtype, shape, arrived, tensor);
}

}  // namespace

exchange::Reply EncodeElement(tf::data::GetElementResult result) {
  exchange::Reply reply;
  auto element = std::make_unique<Element>();
  element->tensors = std::move(result.components);
  ElementHeader header = {};
  header.element_index = result.element_index;
  header.components = static_cast<uint32_t>(element->tensors.size());
  header.end_of_sequence = result.end_of_sequence ? 1 : 0;
  header.skip = result.skip ? 1 : 0;
  Put(header, &reply.head);
  for (const tf::Tensor& tensor : element->tensors) {
    const bool plain = tf::DataTypeCanUseMemcpy(tensor.dtype());
    Put(ComponentHeader{plain ? Form::kPlain : Form::kSerialized,
                        static_cast<uint32_t>(tensor.dtype()),
                        static_cast<uint64_t>(tensor.dims())},
        &reply.head);
    for (int i = 0; i < tensor.dims(); ++i) Put<int64_t>(tensor.dim_size(i), &reply.head);
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
                    " takes more than 2 GiB when it is serialised");
    }
    reply.payloads.push_back({bytes->data(), bytes->size()});
    element->serialized.push_back(std::move(bytes));
  }
  reply.owner = OwnerRef::Holding(std::move(element));
  return reply;
}

absl::Status DecodeElement(exchange::Answer answer, tf::data::GetElementResult* result) {
  std::string_view head = answer.head;
  ElementHeader header;
  if (!Take(&head, &header) || header.components != answer.payloads.size()) return Malformed();
  result->element_index = header.element_index;
  result->end_of_sequence = header.end_of_sequence != 0;
  result->skip = header.skip != 0;
  result->components.resize(header.components);
  for (size_t i = 0; i < result->components.size(); ++i) {
    const absl::Status taken = TakeComponent(&head, &answer.payloads[i], &result->components[i]);
    if (!taken.ok()) return taken;
  }
  return head.empty() ? absl::OkStatus() : Malformed();
}

}  // namespace rdma_transport
