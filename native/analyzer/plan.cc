#include "analyzer/plan.h"

#include "base/json.h"

namespace rdma_transport::analyzer {
namespace {

std::string Number(int64_t value) { return std::to_string(value); }

std::string ShapeJson(const std::vector<int64_t>& shape) {
  return JsonArray(shape, [](int64_t dim) { return dim < 0 ? "null" : Number(dim); });
}

std::string SiteJson(const Site& site) {
  return Json('{')
      .Text("op", site.op)
      .Text("type", site.type)
      .Text("kind", site.kind)
      .Field("through", JsonArray(site.through, Quote))
      .End();
}

std::string EdgeJson(const Edge& edge) {
  return Json('{')
      .Text("name", edge.name)
      .Text("source", TaskOf(edge.source_device))
      .Text("destination", TaskOf(edge.destination_device))
      .Text("source_device", edge.source_device)
      .Text("destination_device", edge.destination_device)
      .Text("dtype", edge.dtype_name)
      .Field("shape", edge.shape ? ShapeJson(*edge.shape) : "null")
      .Field("bytes", edge.bytes ? std::to_string(*edge.bytes) : "null")
      .Text("mode", ModeName(edge.mode))
      .Text("reason", edge.reason)
      .Text("mutability", edge.mutability)
      .Field("site", SiteJson(edge.site))
      .Count("slots", edge.slots)
      .Count("slot_bytes", edge.slot_bytes)
      .Flag("control", edge.control)
      .End();
}

std::string VariableJson(const Variable& variable) {
  return Json('{')
      .Text("name", variable.name)
      .Text("task", variable.task)
      .Text("dtype", variable.dtype)
      .Field("shape", ShapeJson(variable.shape))
      .Count("bytes", variable.bytes)
      .Count("readers", variable.readers)
      .End();
}

std::string TaskJson(const Task& task) {
  return Json('{')
      .Text("name", task.name)
      .Count("slot_bytes", task.slot_bytes)
      .Count("slot_peak_bytes", task.slot_peak_bytes)
      .Count("source_bytes", task.source_bytes)
      .Count("source_peak_bytes", task.source_peak_bytes)
      .Count("sent_bytes", task.sent_bytes)
      .Count("received_bytes", task.received_bytes)
      .End();
}

}  // namespace

const char* ModeName(EdgeMode mode) {
  static constexpr const char* kNames[] = {"static", "dynamic", "inline", "grpc"};
  return kNames[static_cast<int>(mode)];
}

std::string NumpyName(const std::string& name) {
  if (name == "half") return "float16";
  if (name == "float") return "float32";
  if (name == "double") return "float64";
  return name;
}

std::string TaskOf(const std::string& device) {
  std::string task = device.substr(0, device.find("/device:"));
  const size_t replica = task.find("/replica:");
  if (replica != std::string::npos) {
    task.erase(replica, task.find('/', replica + 1) - replica);
  }
  return task;
}

std::string PlanJson(const Plan& plan) {
  return Json('{')
      .Count("version", 1)
      .Count("arena_limit", plan.arena_limit)
      .Count("analysis_seconds", plan.analysis_seconds)
      .Count("nodes", plan.nodes)
      .Field("tasks", JsonArray(plan.tasks, TaskJson))
      .Field("edges", JsonArray(plan.edges, EdgeJson))
      .Field("variables", JsonArray(plan.variables, VariableJson))
      .End();
}

}  // namespace rdma_transport::analyzer
