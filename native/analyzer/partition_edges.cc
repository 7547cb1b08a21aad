#include "analyzer/partition_edges.h"

#include <algorithm>

#include "analyzer/shapes.h"
#include "analyzer/sites.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

std::string KeyOf(const tf::Node* send, const std::string& from, const std::string& to) {
  std::string name;
  int64_t incarnation = 0;
  if (!tf::TryGetNodeAttr(send->attrs(), "tensor_name", &name) ||
      !tf::TryGetNodeAttr(send->attrs(), "send_device_incarnation", &incarnation)) {
    return "";
  }
  const std::string key = tf::Rendezvous::CreateKey(from, static_cast<uint64_t>(incarnation), to,
                                                    name, tf::FrameAndIter(0, 0));
  return key.substr(0, key.rfind(';'));
}

// The nodes inside loops: those that an Enter reaches without passing an Exit.
std::vector<bool> InLoops(const tf::Graph& graph) {
  std::vector<bool> inside(static_cast<size_t>(graph.num_node_ids()), false);
  std::vector<const tf::Node*> stack;
  for (const tf::Node* node : graph.op_nodes()) {
    if (!node->IsEnter()) continue;
    inside[node->id()] = true;
    stack.push_back(node);
  }
  while (!stack.empty()) {
    const tf::Node* node = stack.back();
    stack.pop_back();
    if (node->IsExit()) continue;
    for (const tf::Node* next : node->out_nodes()) {
      if (!next->IsOp() || inside[next->id()]) continue;
      inside[next->id()] = true;
      stack.push_back(next);
    }
  }
  return inside;
}

std::optional<uint64_t> BytesOf(const Shape& shape, tf::DataType dtype) {
  if (!shape) return std::nullopt;
  uint64_t bytes = static_cast<uint64_t>(tf::DataTypeSize(dtype));
  for (const int64_t dim : *shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

// The dummy tensor with which TensorFlow carries a control dependency to another task.
bool IsControl(const tf::Node* source) {
  if (!source->IsConstant()) return false;
  const tf::TensorProto* value = nullptr;
  if (!tf::GetNodeAttr(source->attrs(), "value", &value).ok()) return false;
  const auto& shape = value->tensor_shape();
  if (shape.dim_size() != 1 || shape.dim(0).size() != 0 || source->out_edges().size() != 1) {
    return false;
  }
  // It has a control input from the operation that it represents.
  for (const tf::Edge* edge : source->in_edges()) {
    if (edge->IsControlEdge() && edge->src()->IsOp()) return true;
  }
  return false;
}

std::string ControlName(const tf::Node* dummy) {
  for (const tf::Edge* edge : dummy->in_edges()) {
    if (edge->IsControlEdge() && edge->src()->IsOp()) return "^" + edge->src()->name();
  }
  return "^" + dummy->name();
}

}  // namespace

void FindEdges(const tf::Graph& partition, std::vector<Edge>* edges) {
  const Shapes shapes(partition);
  const std::vector<bool> in_loop = InLoops(partition);
  for (const tf::Node* node : partition.op_nodes()) {
    if (!node->IsSend()) continue;
    Edge edge;
    if (!tf::TryGetNodeAttr(node->attrs(), "send_device", &edge.source_device) ||
        !tf::TryGetNodeAttr(node->attrs(), "recv_device", &edge.destination_device) ||
        tf::DeviceNameUtils::IsSameAddressSpace(edge.source_device, edge.destination_device)) {
      continue;
    }
    const tf::Edge* input = nullptr;
    if (!node->input_edge(0, &input).ok()) continue;
    const tf::Node* source = input->src();
    const int output = input->src_output();
    const tf::DataType dtype = tf::BaseType(source->output_type(output));
    edge.key = KeyOf(node, edge.source_device, edge.destination_device);
    edge.dtype = dtype;
    edge.dtype_name = NumpyName(tf::DataTypeString(dtype));
    edge.control = IsControl(source);
    edge.name = edge.control ? ControlName(source) : source->name() + ":" + std::to_string(output);
    edge.shape = shapes.Of(source, output);
    if (tf::DataTypeCanUseMemcpy(dtype)) edge.bytes = BytesOf(edge.shape, dtype);
    const Origin origin = FindOrigin(shapes, source, output);
    edge.site = origin.site;
    edge.mutability =
        tf::IsRefType(source->output_type(output)) ? "reference variable" : origin.mutability;
    edge.in_loop = in_loop[node->id()];
    edges->push_back(std::move(edge));
  }
}

}  // namespace rdma_transport::analyzer
