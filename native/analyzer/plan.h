// The result of analyzing a graph: which tensors cross between tasks, and where each is stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rdma_transport::analyzer {

// How the plan expects the tensors of an edge to be sent.
enum class EdgeMode {
  kStatic,   // both sides know its slots before the step
  kDynamic,  // each tensor is sent as a descriptor
  kInline,   // small enough to travel in the notification
  kGrpc,     // the fabric cannot carry it, so it falls back to gRPC
};
const char* ModeName(EdgeMode mode);

// Where the buffer of a sent tensor is allocated.
struct Site {
  std::string op;    // the node's name
  std::string type;  // the operation's type
  // "kernel": allocated by that node in each step. "variable", "constant", "feed", "function
  // argument", "received": already allocated. "staged": copied from an accelerator's memory before
  // it is sent. "unknown": only known when a step runs.
  std::string kind = "unknown";
  std::vector<std::string> through;  // operations that forward the buffer to the send
  // For a variable: the operations that update it, and reallocate it if it is being read.
  std::vector<std::string> updates;
};

// Where an edge's buffers would start in one piece of memory of each task, whose parts are shared
// by buffers that are never in use together. Empty if the order of the graph is not known.
struct Offsets {
  std::optional<uint64_t> source;  // among the buffers of the tensors that the task sends
  std::optional<uint64_t> slots;   // among the slots of the destination
};

// A tensor that one task sends to another in each step.
struct Edge {
  std::string name;  // "node:0", or "^node" for a control edge
  // The rendezvous key without frame-and-iteration suffix; empty if nothing is registered.
  std::string key;
  std::string source_device;
  std::string destination_device;
  int dtype = 0;  // TensorFlow's DataType
  std::string dtype_name;
  // A dimension is -1 if it is unknown; empty if the rank is unknown.
  std::optional<std::vector<int64_t>> shape;
  std::optional<uint64_t> bytes;
  EdgeMode mode = EdgeMode::kDynamic;
  std::string reason;
  std::string mutability = "immutable";  // "variable", "reference variable"
  Site site;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;  // for these slots, if the sender has them
  Offsets offsets;
  bool control = false;
  bool in_loop = false;
};

// A variable, and the task that holds it.
struct Variable {
  std::string name;
  std::string task;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  int readers = 0;  // number of other tasks that read it
};

// What the edges of one task need. All numbers are bytes.
struct Task {
  std::string name;
  uint64_t slot_bytes = 0;       // for receiver-side slots, those of one size shared per link
  uint64_t slot_peak_bytes = 0;  // the same if slots that are never in use together share memory
  uint64_t source_bytes = 0;     // for sent tensors, allocated by its arena
  uint64_t source_peak_bytes = 0;
  uint64_t sent_bytes = 0;  // per step, as far as known
  uint64_t received_bytes = 0;
};

// The whole result. `arena_limit` is in bytes, `nodes` counts the placed graph.
struct Plan {
  uint64_t arena_limit = 0;
  double analysis_seconds = 0;
  int nodes = 0;
  std::vector<Task> tasks;
  std::vector<Edge> edges;
  std::vector<Variable> variables;
};

// Sums and products that saturate instead of wrapping around.
inline uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
inline uint64_t SaturatingMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

// NumPy's name for a type that TensorFlow's C++ calls `name`: "float" is float32.
std::string NumpyName(const std::string& name);

// Returns "/job:ps/task:0" for a full device name.
std::string TaskOf(const std::string& device);

// Returns the plan in version 1 of the schema in graph_analyzer/schema.json.
std::string PlanJson(const Plan& plan);

}  // namespace rdma_transport::analyzer
