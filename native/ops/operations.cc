// The operations, as TensorFlow's graphs have them. All are stateful: TensorFlow neither merges two
// of them, nor computes one while it optimizes a graph, nor removes one from a function.
//
// As operations that communicate, they may report Unavailable: of others, TensorFlow makes that an
// Internal error.
//
// `group` is the number of NamedCalls::Find(). `tensor_name` is the name of a call; if it is empty,
// that is the name of the node. Factors are decimal numbers, since an attribute "float" has only 32
// bits.
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace rdma_transport {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

#define RDMA_TRANSPORT_TYPES                                                                   \
  "{bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, half, bfloat16, float32, " \
  "float64, complex64, complex128}"
#define RDMA_TRANSPORT_REDUCTION                       \
  Attr("op: {'sum', 'product', 'min', 'max'} = 'sum'") \
      .Attr("average: bool = false")                   \
      .Attr("prescale: string = '1'")                  \
      .Attr("postscale: string = '1'")
#define RDMA_TRANSPORT_CALL             \
  Attr("group: int = 0")                \
      .Attr("tensor_name: string = ''") \
      .SetIsStateful()                  \
      .SetIsDistributedCommunication()

absl::Status SameShapes(InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

// As an input, but the number of rows is not known.
absl::Status OtherRows(InferenceContext* context, int i) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(i), 1, &shape));
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
  context->set_output(i, shape);
  return absl::OkStatus();
}

absl::Status OtherRowsOfAll(InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) TF_RETURN_IF_ERROR(OtherRows(context, i));
  // all-gather: also the rows of each rank
  if (context->num_outputs() > context->num_inputs()) {
    context->set_output(context->num_inputs(), context->Vector(InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

REGISTER_OP("RdmaTransportAllReduce")
    .Input("tensors: N * T")
    .Output("reduced: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " RDMA_TRANSPORT_TYPES)
    .RDMA_TRANSPORT_REDUCTION.RDMA_TRANSPORT_CALL.SetShapeFn(SameShapes)
    .Doc("Combines tensors of all ranks element by element, in the order of ranks.");

REGISTER_OP("RdmaTransportDeliver")
    .Input("tensors: N * T")
    .Output("same: N * T")
    .Attr("N: int >= 1")
    .Attr("T: type")
    .SetShapeFn(SameShapes)
    .Doc(
        "Passes tensors on. TensorFlow starts each operation that waits for an asynchronous one as "
        "a task of its own, and small ones that wait for a synchronous one in line.");

REGISTER_OP("RdmaTransportReduceScatter")
    .Input("tensors: N * T")
    .Output("parts: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " RDMA_TRANSPORT_TYPES)
    .RDMA_TRANSPORT_REDUCTION.RDMA_TRANSPORT_CALL.SetShapeFn(OtherRowsOfAll)
    .Doc("As RdmaTransportAllReduce, but each rank gets its part of the rows.");

REGISTER_OP("RdmaTransportAllGather")
    .Input("tensors: N * T")
    .Output("gathered: N * T")
    .Output("rows: int64")
    .Attr("N: int >= 1")
    .Attr("T: " RDMA_TRANSPORT_TYPES)
    .RDMA_TRANSPORT_CALL.SetShapeFn(OtherRowsOfAll)
    .Doc(
        "Concatenates tensors along the first dimension, which may differ. `rows`: of the first "
        "tensor, by rank.");

REGISTER_OP("RdmaTransportBroadcast")
    .Input("tensor: T")
    .Output("received: T")
    .Attr("T: " RDMA_TRANSPORT_TYPES)
    .Attr("root: int = 0")
    .RDMA_TRANSPORT_CALL.SetShapeFn(SameShapes)
    .Doc("Returns the tensor of rank `root` of the group.");

REGISTER_OP("RdmaTransportAllToAll")
    .Input("tensor: T")
    .Input("splits: int32")
    .Output("received: T")
    .Output("received_splits: int32")
    .Attr("T: " RDMA_TRANSPORT_TYPES)
    .RDMA_TRANSPORT_CALL
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(1, context->Vector(InferenceContext::kUnknownDim));
      return OtherRows(context, 0);
    })
    .Doc("Sends splits[i] rows to rank i; without splits, as many to each.");

REGISTER_OP("RdmaTransportBarrier")
    .RDMA_TRANSPORT_CALL.SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Waits until all ranks have come here.");

REGISTER_OP("RdmaTransportJoin")
    .Output("last: int32")
    .RDMA_TRANSPORT_CALL.SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Takes part in the reductions of the others, with zeros, until all ranks have joined. "
        "Returns the rank that did so last.");

REGISTER_OP("RdmaTransportPlace")
    .Output("rank: int32")
    .Output("size: int32")
    .RDMA_TRANSPORT_CALL
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Scalar());
      context->set_output(1, context->Scalar());
      return absl::OkStatus();
    })
    .Doc("Returns this rank and their number, which change from one connection to the next.");

// `table` is the number of Table::Find().
#define RDMA_TRANSPORT_TABLE \
  Attr("table: int").Attr("T: {float32, float64}").SetIsStateful().SetIsDistributedCommunication()

REGISTER_OP("RdmaTransportEmbeddingLookup")
    .Input("ids: Tids")
    .Input("anchor: float32")
    .Output("rows: T")
    .Attr("Tids: {int32, int64, uint64}")
    .Attr("dim: int >= 1")
    .Attr("table_name: string")
    .RDMA_TRANSPORT_TABLE
    .SetShapeFn([](InferenceContext* context) {
      int64_t dim = 0;
      TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(context->Concatenate(context->input(0), context->Vector(dim), &shape));
      context->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc("Reads rows of a table. Gradients of the rows reach it on the way to that of `anchor`.");

REGISTER_OP("RdmaTransportEmbeddingSum")
    .Input("ids: Tids")
    .Input("gradients: T")
    .Output("rows: int64")
    .Output("sums: T")
    .Output("splits: int32")
    .Attr("Tids: {int32, int64, uint64}")
    .Attr("dim: int >= 1")
    .RDMA_TRANSPORT_TABLE
    .SetShapeFn([](InferenceContext* context) {
      int64_t dim = 0;
      TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
      context->set_output(0, context->Vector(InferenceContext::kUnknownDim));
      context->set_output(1, context->Matrix(InferenceContext::kUnknownDim, dim));
      context->set_output(2, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc("Sums gradients by row. The rows of each owner follow each other; `splits`: how many.");

REGISTER_OP("RdmaTransportEmbeddingApply")
    .Input("rows: int64")
    .Input("gradients: T")
    .RDMA_TRANSPORT_TABLE.SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Updates rows of this rank by the gradients that all ranks have sent.");

}  // namespace
}  // namespace rdma_transport
