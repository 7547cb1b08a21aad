#include "plugin/reduction_types.h"

#include <string>

namespace rdma_transport {

namespace tf = tensorflow;

absl::Status Parse(tf::DataType dtype, collectives::DType* parsed) {
  switch (dtype) {
    case tf::DT_HALF:
      *parsed = collectives::DType::kFloat16;
      return absl::OkStatus();
    case tf::DT_BFLOAT16:
      *parsed = collectives::DType::kBfloat16;
      return absl::OkStatus();
    case tf::DT_FLOAT:
      *parsed = collectives::DType::kFloat32;
      return absl::OkStatus();
    case tf::DT_DOUBLE:
      *parsed = collectives::DType::kFloat64;
      return absl::OkStatus();
    case tf::DT_INT32:
      *parsed = collectives::DType::kInt32;
      return absl::OkStatus();
    case tf::DT_INT64:
      *parsed = collectives::DType::kInt64;
      return absl::OkStatus();
    default:
      return absl::UnimplementedError("a reduction of " + tf::DataTypeString(dtype));
  }
}

absl::Status Parse(const tf::OpKernel* merge, collectives::ReduceOp* parsed) {
  const std::string name = merge == nullptr ? "nothing" : merge->type_string();
  if (name == "Add") {
    *parsed = collectives::ReduceOp::kSum;
  } else if (name == "Mul") {
    *parsed = collectives::ReduceOp::kProd;
  } else if (name == "Minimum") {
    *parsed = collectives::ReduceOp::kMin;
  } else if (name == "Maximum") {
    *parsed = collectives::ReduceOp::kMax;
  } else {
    return absl::UnimplementedError("a reduction by " + name);
  }
  return absl::OkStatus();
}

tf::Tensor SliceOf(const tf::Tensor& flat, const collectives::Round& range) {
  const auto size = static_cast<size_t>(tf::DataTypeSize(flat.dtype()));
  return flat.Slice(static_cast<int64_t>(range.begin / size),
                    static_cast<int64_t>((range.begin + range.length) / size));
}

}  // namespace rdma_transport
