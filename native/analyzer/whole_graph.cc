#include "analyzer/whole_graph.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "analyzer/partition_edges.h"
#include "analyzer/shapes.h"
#include "analyzer/variables.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/lower_functional_ops.h"
#include "tensorflow/core/common_runtime/placer.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/graph_def_util.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph_partition.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

Status Invalid(const std::string& sentence) { return Status(Code::kInvalidArgument, sentence); }

Status Refused(const char* what, const absl::Status& status) {
  std::string message(status.message());
  const size_t end = message.find('\n');
  if (end != std::string::npos) message.resize(end);
  return Invalid(std::string(what) + ": " + message);
}

// Stands for a CPU of the cluster while nodes are placed.
class ImaginedDevice final : public tf::Device {
 public:
  explicit ImaginedDevice(const std::string& task)
      : Device(nullptr, tf::Device::BuildDeviceAttributes(
                            task + "/device:CPU:0", tf::DeviceType(tf::DEVICE_CPU),
                            tf::Bytes(1 << 30), tf::DeviceLocality())) {}
  absl::Status Sync() override { return absl::OkStatus(); }
  tf::Allocator* GetAllocator(tf::AllocatorAttributes) override { return nullptr; }
};

// How many nodes a graph has when its functions are inlined; a call of itself has no end.
class ExpandedSize {
 public:
  explicit ExpandedSize(const tf::GraphDef& graph) {
    for (const tf::FunctionDef& function : graph.library().function()) {
      functions_[function.signature().name()] = &function;
    }
  }

  Status Of(const tf::GraphDef& graph, uint64_t* total) { return Sum(graph.node(), total, 0); }

 private:
  static constexpr int kDeepest = 200;

  template <typename Nodes>
  Status Sum(const Nodes& nodes, uint64_t* total, int depth) {
    *total = static_cast<uint64_t>(nodes.size());
    for (const tf::NodeDef& node : nodes) {
      RDMA_RETURN_IF_ERROR(Call(node.op(), total, depth));
      for (const auto& [name, value] : node.attr()) {
        if (value.has_func()) RDMA_RETURN_IF_ERROR(Call(value.func().name(), total, depth));
        for (const tf::NameAttrList& function : value.list().func()) {
          RDMA_RETURN_IF_ERROR(Call(function.name(), total, depth));
        }
      }
      if (*total > kMostNodes) {
        return Invalid("the graph has more than " + std::to_string(kMostNodes) +
                       " nodes when its functions are inlined; analyse a part of it");
      }
    }
    return OkStatus();
  }

  Status Call(const std::string& name, uint64_t* total, int depth) {
    const auto function = functions_.find(name);
    if (function == functions_.end()) return OkStatus();
    const auto known = sizes_.find(name);
    if (known != sizes_.end()) {
      *total += known->second;
      return OkStatus();
    }
    if (depth > kDeepest || !open_.insert(name).second) {
      return Invalid("function " + name + " calls itself, or is nested too deeply");
    }
    uint64_t size = 0;
    RDMA_RETURN_IF_ERROR(Sum(function->second->node_def(), &size, depth + 1));
    open_.erase(name);
    sizes_[name] = size;
    *total += size;
    return OkStatus();
  }

  std::unordered_map<std::string, const tf::FunctionDef*> functions_;
  std::unordered_map<std::string, uint64_t> sizes_;
  std::set<std::string> open_;
};

// Sees to it that each device asked for belongs to a task of the cluster.
class DeviceCheck {
 public:
  explicit DeviceCheck(const std::vector<std::string>& tasks) {
    for (const std::string& task : tasks) {
      tf::DeviceNameUtils::ParsedName parsed;
      if (tf::DeviceNameUtils::ParseFullName(task, &parsed)) jobs_[parsed.job].insert(parsed.task);
      listed_ += (listed_.empty() ? "" : ", ") + task;
    }
  }

  Status Check(const tf::Node* node) {
    tf::DeviceNameUtils::ParsedName parsed;
    const std::string& device = node->requested_device();
    if (device.empty()) return OkStatus();
    if (!tf::DeviceNameUtils::ParseFullName(device, &parsed)) {
      return Invalid("node " + node->name() + " asks for the malformed device '" + device + "'");
    }
    if (!parsed.has_job) return OkStatus();
    any_ = true;
    const auto job = jobs_.find(parsed.job);
    if (job != jobs_.end() && (!parsed.has_task || job->second.count(parsed.task) != 0)) {
      return OkStatus();
    }
    return Invalid("node " + node->name() + " is on '" + device +
                   "', and the cluster has no such task; it has " + listed_);
  }
  bool any() const { return any_; }

 private:
  std::map<std::string, std::set<int>> jobs_;
  std::string listed_;
  bool any_ = false;
};

std::string FullTask(const std::string& task) {
  tf::DeviceNameUtils::ParsedName parsed;
  if (!tf::DeviceNameUtils::ParseFullName(task, &parsed) || !parsed.has_job || !parsed.has_task) {
    return "";
  }
  return "/job:" + parsed.job + "/replica:0/task:" + std::to_string(parsed.task);
}

using Nodes = google::protobuf::RepeatedPtrField<tf::NodeDef>;

// TensorFlow ends the process where a loop's Merge has more inputs than the two that it must have.
Status CheckMerges(const Nodes& nodes) {
  std::unordered_map<std::string, const tf::NodeDef*> by_name;
  for (const tf::NodeDef& node : nodes) by_name[node.name()] = &node;
  for (const tf::NodeDef& node : nodes) {
    if (node.op() != "Merge" && node.op() != "RefMerge") continue;
    int inputs = 0;
    bool loop = false;
    for (const std::string& input : node.input()) {
      if (input.empty() || input[0] == '^') continue;
      ++inputs;
      const auto source = by_name.find(input.substr(0, input.find(':')));
      loop |= source != by_name.end() && (source->second->op() == "NextIteration" ||
                                          source->second->op() == "RefNextIteration");
    }
    if (loop && inputs != 2) {
      return Invalid("the loop's Merge " + node.name() + " has " + std::to_string(inputs) +
                     " inputs instead of two; the graph is corrupt");
    }
  }
  return OkStatus();
}

// A constant that says few values for a large shape would be written out in full as soon as shape
// inference looks at it.
constexpr uint64_t kLargestConstant = uint64_t{1} << 24;

void TameConstants(Nodes* nodes) {
  for (tf::NodeDef& node : *nodes) {
    if (node.op() != "Const") continue;
    const auto value = node.attr().find("value");
    if (value == node.attr().end()) continue;
    const tf::TensorProto& tensor = value->second.tensor();
    uint64_t elements = 1;
    for (const auto& dim : tensor.tensor_shape().dim()) {
      elements = SaturatingMul(elements, static_cast<uint64_t>(std::max<int64_t>(dim.size(), 0)));
    }
    if (elements <= kLargestConstant || tensor.ByteSizeLong() >= elements) continue;
    tf::AttrValue shape;
    *shape.mutable_shape() = tensor.tensor_shape();
    node.set_op("Placeholder");
    node.mutable_attr()->erase("value");
    (*node.mutable_attr())["shape"] = std::move(shape);
  }
}

Status Import(std::string_view bytes, std::unique_ptr<tf::Graph>* graph,
              std::unique_ptr<tf::FunctionLibraryDefinition>* library) {
  tf::GraphDef graph_def;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !graph_def.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Invalid("these bytes are no GraphDef: the file is corrupt or of another kind");
  }
  if (graph_def.node_size() == 0) return Invalid("the graph has no nodes");
  uint64_t size = 0;
  RDMA_RETURN_IF_ERROR(ExpandedSize(graph_def).Of(graph_def, &size));
  RDMA_RETURN_IF_ERROR(CheckMerges(graph_def.node()));
  TameConstants(graph_def.mutable_node());
  for (tf::FunctionDef& function : *graph_def.mutable_library()->mutable_function()) {
    RDMA_RETURN_IF_ERROR(CheckMerges(function.node_def()));
    TameConstants(function.mutable_node_def());
  }
  absl::Status status = tf::AddDefaultAttrsToGraphDef(&graph_def, *tf::OpRegistry::Global(), 0);
  *library = std::make_unique<tf::FunctionLibraryDefinition>(tf::OpRegistry::Global(),
                                                             graph_def.library());
  *graph = std::make_unique<tf::Graph>(**library);
  tf::GraphConstructorOptions options;
  options.allow_internal_ops = true;
  options.expect_device_spec = false;
  status = tf::ConvertGraphDefToGraph(options, std::move(graph_def), graph->get());
  if (!status.ok()) return Refused("TensorFlow refuses the graph", status);
  return OkStatus();
}

bool HasNoUser(const tf::Node* node) {
  for (const tf::Node* user : node->out_nodes()) {
    if (user->IsOp()) return false;
  }
  return true;
}

// What lowering leaves beside the inlined bodies: a node with the call's name that can be fetched,
// and one Identity per result, which asks for no device.
void TidyInlined(int first_new, tf::Graph* graph) {
  for (tf::Node* node : graph->op_nodes()) {
    if (node->id() >= first_new && node->type_string() == "IdentityN" && HasNoUser(node)) {
      graph->RemoveNode(node);
    }
  }
  std::vector<tf::Node*> order;
  tf::GetReversePostOrder(*graph, &order);
  for (tf::Node* node : order) {
    if (node->id() < first_new || !node->IsIdentity() || !node->requested_device().empty()) {
      continue;
    }
    // A result lies where it was computed.
    const tf::Edge* input = nullptr;
    if (node->input_edge(0, &input).ok()) {
      node->set_requested_device(input->src()->requested_device());
    }
  }
}

Status Lower(std::unique_ptr<tf::Graph>* graph, tf::FunctionLibraryDefinition* library) {
  tf::SessionOptions session;
  session.config.mutable_graph_options()->mutable_optimizer_options()->set_do_function_inlining(
      true);
  tf::GraphOptimizationPassOptions options;
  options.session_options = &session;
  options.graph = graph;
  options.flib_def = library;
  const int first_new = (*graph)->num_node_ids();
  const absl::Status status = tf::LowerFunctionalOpsPass().Run(options);
  if (!status.ok()) return Refused("its functions cannot be inlined", status);
  TidyInlined(first_new, graph->get());
  return OkStatus();
}

// The device asked for, completed by the default one.
Status Complete(const Request& request, tf::Graph* graph) {
  tf::DeviceNameUtils::ParsedName fallback;
  if (request.default_device.empty()) return OkStatus();
  if (!tf::DeviceNameUtils::ParseFullName(request.default_device, &fallback)) {
    return Invalid("the default device '" + request.default_device +
                   "' is malformed; write it as /job:worker/task:0");
  }
  for (tf::Node* node : graph->op_nodes()) {
    tf::DeviceNameUtils::ParsedName parsed;
    if (!tf::DeviceNameUtils::ParseFullName(node->requested_device(), &parsed)) continue;
    tf::DeviceNameUtils::MergeUnsetDevNames(&parsed, fallback);
    node->set_requested_device(tf::DeviceNameUtils::ParsedNameToString(parsed));
  }
  return OkStatus();
}

Status Place(const Request& request, tf::Graph* graph,
             const tf::FunctionLibraryDefinition& library) {
  DeviceCheck check(request.tasks);
  RDMA_RETURN_IF_ERROR(Complete(request, graph));
  for (const tf::Node* node : graph->op_nodes()) {
    RDMA_RETURN_IF_ERROR(check.Check(node));
  }
  if (!check.any()) {
    return Invalid(
        "no node of the graph is placed on a task (tf.device('/job:...')), so nothing is known to "
        "cross; place the graph, or give a default device");
  }
  std::vector<std::unique_ptr<ImaginedDevice>> devices;
  tf::DeviceSet set;
  for (const std::string& task : request.tasks) {
    const std::string full = FullTask(task);
    if (full.empty()) return Invalid("'" + task + "' is no task (/job:name/task:number)");
    devices.push_back(std::make_unique<ImaginedDevice>(full));
    set.AddDevice(devices.back().get());
  }
  tf::Placer placer(graph, "", &library, &set, nullptr, /*allow_soft_placement=*/true,
                    /*log_device_placement=*/false);
  const absl::Status status = placer.Run();
  return status.ok() ? OkStatus() : Refused("its nodes cannot be placed on this cluster", status);
}

Status Split(tf::Graph* graph, const tf::FunctionLibraryDefinition& library, Plan* plan) {
  tf::PartitionOptions options;
  options.node_to_loc = [](const tf::Node* node) { return TaskOf(node->assigned_device_name()); };
  std::unordered_set<std::string> taken;
  for (const tf::Node* node : graph->nodes()) taken.insert(node->name());
  int64_t number = 0;
  options.new_name = [&taken, &number](const std::string& prefix) {
    std::string name;
    do {
      name = prefix + "/_" + std::to_string(number++);
    } while (!taken.insert(name).second);
    return name;
  };
  options.get_incarnation = [](const std::string&) { return uint64_t{1}; };
  options.flib_def = &library;
  std::unordered_map<std::string, tf::GraphDef> partitions;
  absl::Status status = tf::Partition(options, graph, &partitions);
  if (!status.ok()) return Refused("it cannot be split between tasks", status);
  std::map<std::string, tf::GraphDef*> ordered;
  for (auto& [task, partition] : partitions) ordered[task] = &partition;
  for (const auto& [task, partition] : ordered) {
    tf::Graph part(library);
    tf::GraphConstructorOptions import;
    import.allow_internal_ops = true;
    import.expect_device_spec = true;
    status = tf::ConvertGraphDefToGraph(import, std::move(*partition), &part);
    if (!status.ok()) return Refused("a task's part of it is refused", status);
    FindEdges(part, &plan->edges);
  }
  return OkStatus();
}

}  // namespace

Status Analyze(std::string_view graph_def, const Request& request, Plan* plan) {
  const auto start = std::chrono::steady_clock::now();
  if (request.tasks.empty()) return Invalid("the cluster has no tasks");
  std::unique_ptr<tf::Graph> graph;
  std::unique_ptr<tf::FunctionLibraryDefinition> library;
  RDMA_RETURN_IF_ERROR(Import(graph_def, &graph, &library));
  RDMA_RETURN_IF_ERROR(Lower(&graph, library.get()));
  RDMA_RETURN_IF_ERROR(Place(request, graph.get(), *library));
  plan->nodes = graph->num_op_nodes();
  {
    const Shapes shapes(*graph);
    MarkShapes(shapes, graph.get());
    plan->variables = FindVariables(*graph, shapes);
  }
  RDMA_RETURN_IF_ERROR(Split(graph.get(), *library, plan));
  plan->arena_limit = request.limits.arena_bytes;
  PlaceEdges(request.limits, request.tasks, plan);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  plan->analysis_seconds = taken.count();
  return OkStatus();
}

}  // namespace rdma_transport::analyzer
