#include "analyzer/partition_edges.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "analyzer/loops.h"
#include "analyzer/offsets.h"
#include "analyzer/shapes.h"
#include "analyzer/sites.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

// Attributes of a _Send, for the task that runs it.
constexpr char kSite[] = "_rdma_transport_site";
constexpr char kInLoop[] = "_rdma_transport_in_loop";

std::string KeyOf(const tf::AttrSlice& send, const std::string& from, const std::string& to) {
  std::string name;
  int64_t incarnation = 0;
  if (!tf::TryGetNodeAttr(send, "tensor_name", &name) ||
      !tf::TryGetNodeAttr(send, "send_device_incarnation", &incarnation)) {
    return "";
  }
  const std::string key = tf::Rendezvous::CreateKey(from, static_cast<uint64_t>(incarnation), to,
                                                    name, tf::FrameAndIter(0, 0));
  return key.substr(0, key.rfind(';'));
}

// Sets the edge's key and devices. Returns false if it does not leave the task.
bool LeavesTask(const tf::AttrSlice& send, Edge* edge) {
  if (!tf::TryGetNodeAttr(send, "send_device", &edge->source_device) ||
      !tf::TryGetNodeAttr(send, "recv_device", &edge->destination_device) ||
      tf::DeviceNameUtils::IsSameAddressSpace(edge->source_device, edge->destination_device)) {
    return false;
  }
  edge->key = KeyOf(send, edge->source_device, edge->destination_device);
  return true;
}

void SetType(tf::DataType dtype, const Shape& shape, Edge* edge) {
  edge->dtype = dtype;
  edge->dtype_name = NumpyName(tf::DataTypeString(dtype));
  edge->shape = shape;
  if (tf::DataTypeCanUseMemcpy(dtype)) edge->bytes = BytesOf(shape, dtype);
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

// Whether the tensor lies in an accelerator's memory: TensorFlow uses another operation for tensors
// that a device keeps in the host's.
bool IsStaged(const tf::Node* send, const Edge& edge) {
  tf::DeviceNameUtils::ParsedName device;
  return send->type_string() == "_Send" &&
         tf::DeviceNameUtils::ParseFullName(edge.source_device, &device) && device.has_type &&
         device.type != tf::DEVICE_CPU;
}

// Returns the operation that allocates the buffers of a site in each step, or an empty string.
std::string AllocatorOf(const Site& site) {
  if (site.kind == "kernel") return site.op;
  const bool updated = site.kind == "variable" && site.updates.size() == 1;
  return updated ? site.updates.front() : "";
}

// Calls `found` for each _Send to another task.
void ForEachEdge(const tf::Graph& partition,
                 const std::function<void(tf::Node* send, Edge edge)>& found) {
  std::vector<std::pair<tf::Node*, Edge>> sends;
  for (tf::Node* node : partition.op_nodes()) {
    Edge edge;
    if (node->IsSend() && LeavesTask(node->attrs(), &edge)) sends.emplace_back(node, edge);
  }
  if (sends.empty()) return;  // inference costs more than anything else here
  const Shapes shapes(partition);
  const std::vector<bool> in_loop = InLoops(partition);
  for (auto& [node, edge] : sends) {
    const tf::Edge* input = nullptr;
    if (!node->input_edge(0, &input).ok()) continue;
    const tf::Node* source = input->src();
    const int output = input->src_output();
    SetType(tf::BaseType(source->output_type(output)), shapes.Of(source, output), &edge);
    edge.control = IsControl(source);
    edge.name = edge.control ? ControlName(source) : source->name() + ":" + std::to_string(output);
    const Origin origin = FindOrigin(shapes, source, output);
    edge.site = origin.site;
    edge.mutability =
        tf::IsRefType(source->output_type(output)) ? "reference variable" : origin.mutability;
    if (IsStaged(node, edge)) {
      edge.site.kind = "staged";
      edge.mutability = "immutable";
    }
    edge.in_loop = in_loop[node->id()];
    edge.offsets = OffsetsOf(source, output, TaskOf(edge.destination_device));
    found(node, std::move(edge));
  }
}

}  // namespace

void FindEdges(const tf::Graph& partition, std::vector<Edge>* edges) {
  ForEachEdge(partition, [edges](tf::Node*, Edge edge) { edges->push_back(std::move(edge)); });
}

void MarkEdges(const tf::Graph& partition) {
  ForEachEdge(partition, [](tf::Node* send, const Edge& edge) {
    if (edge.control || !edge.bytes) return;
    send->AddAttr(kInLoop, edge.in_loop);
    send->AddAttr(kSite, AllocatorOf(edge.site));
  });
}

bool MarkOf(const tf::AttrSlice& send, Mark* mark) {
  return tf::TryGetNodeAttr(send, kInLoop, &mark->in_loop) &&
         tf::TryGetNodeAttr(send, kSite, &mark->site);
}

}  // namespace rdma_transport::analyzer
