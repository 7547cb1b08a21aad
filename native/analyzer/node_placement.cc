#include "analyzer/node_placement.h"

#include <map>
#include <memory>
#include <set>

#include "analyzer/refusal.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_set.h"
#include "tensorflow/core/common_runtime/placer.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

// Represents a CPU of the cluster during placement.
class ImaginedDevice final : public tf::Device {
 public:
  explicit ImaginedDevice(const std::string& task)
      : Device(nullptr, tf::Device::BuildDeviceAttributes(
                            task + "/device:CPU:0", tf::DeviceType(tf::DEVICE_CPU),
                            tf::Bytes(1 << 30), tf::DeviceLocality())) {}
  absl::Status Sync() override { return absl::OkStatus(); }
  tf::Allocator* GetAllocator(tf::AllocatorAttributes) override { return nullptr; }
};

// Checks that each requested device belongs to a task of the cluster.
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
      return Invalid("node " + node->name() + " requests the malformed device '" + device + "'");
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

// The requested device, completed by the default one.
Status Complete(const std::string& default_device, tf::Graph* graph) {
  tf::DeviceNameUtils::ParsedName fallback;
  if (default_device.empty()) return OkStatus();
  if (!tf::DeviceNameUtils::ParseFullName(default_device, &fallback)) {
    return Invalid("the default device '" + default_device +
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

// Moves nodes that request an accelerator from their task's CPU to it.
void AssignAccelerators(tf::Graph* graph) {
  for (tf::Node* node : graph->op_nodes()) {
    tf::DeviceNameUtils::ParsedName wanted;
    tf::DeviceNameUtils::ParsedName device;
    if (!tf::DeviceNameUtils::ParseFullName(node->requested_device(), &wanted) ||
        !wanted.has_type || wanted.type == tf::DEVICE_CPU ||
        !tf::DeviceNameUtils::ParseFullName(node->assigned_device_name(), &device)) {
      continue;
    }
    device.type = wanted.type;
    device.id = wanted.has_id ? wanted.id : 0;
    node->set_assigned_device_name(tf::DeviceNameUtils::ParsedNameToString(device));
  }
}

}  // namespace

Status PlaceNodes(const std::vector<std::string>& tasks, const std::string& default_device,
                  const tf::FunctionLibraryDefinition& library, tf::Graph* graph) {
  DeviceCheck check(tasks);
  RDMA_RETURN_IF_ERROR(Complete(default_device, graph));
  for (const tf::Node* node : graph->op_nodes()) {
    RDMA_RETURN_IF_ERROR(check.Check(node));
  }
  if (!check.any()) {
    return Invalid(
        "no node of the graph is placed on a task (tf.device('/job:...')), so nothing is known to "
        "cross, as in a model that was exported to serve. Give a graph with tasks, the .keras file "
        "of a model, a step or a model of a script (train.py:NAME), or --default-device");
  }
  std::vector<std::unique_ptr<ImaginedDevice>> devices;
  tf::DeviceSet set;
  for (const std::string& task : tasks) {
    const std::string full = FullTask(task);
    if (full.empty()) return Invalid("'" + task + "' is not a task (/job:name/task:number)");
    devices.push_back(std::make_unique<ImaginedDevice>(full));
    set.AddDevice(devices.back().get());
  }
  tf::Placer placer(graph, "", &library, &set, nullptr, /*allow_soft_placement=*/true,
                    /*log_device_placement=*/false);
  const absl::Status status = placer.Run();
  if (!status.ok()) return Refused("its nodes cannot be placed on this cluster", status);
  AssignAccelerators(graph);
  return OkStatus();
}

}  // namespace rdma_transport::analyzer
