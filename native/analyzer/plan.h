// What the analysis of a graph says: which tensors cross between tasks, and where each will lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rdma_transport::analyzer {

enum class EdgeMode {
  kStatic,   // both sides know its place before the step
  kDynamic,  // a descriptor tells, each time
  kInline,   // so small that it rides in the notification
  kGrpc,     // the fabric cannot carry it: gRPC does
};
const char* ModeName(EdgeMode mode);

// Where the buffer of a sent tensor is allocated.
struct Site {
  std::string op;    // the node's name
  std::string type;  // the operation's
  // "kernel": by that node, each time. "variable", "constant", "feed", "function argument",
  // "received": it lies there already. "unknown": only a step will show.
  std::string kind = "unknown";
  std::vector<std::string> through;  // operations that hand the buffer on, towards the send
  // Of a variable: the operations that update it, and allocate it anew if it is being read.
  std::vector<std::string> updates;
};

struct Edge {
  std::string name;  // "node:0"; of a control edge "^node"
  std::string key;   // of the rendezvous, without its tail; empty where nothing is registered
  std::string source_device;
  std::string destination_device;
  int dtype = 0;  // TensorFlow's DataType
  std::string dtype_name;
  std::optional<std::vector<int64_t>> shape;  // -1: not known; none: not even the rank
  std::optional<uint64_t> bytes;
  EdgeMode mode = EdgeMode::kDynamic;
  std::string reason;
  std::string mutability = "immutable";  // "variable", "reference variable"
  Site site;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0;  // of all of them
  bool control = false;
  bool in_loop = false;
};

struct Variable {
  std::string name;
  std::string task;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;
  // Rows of what it is multiplied with as a matrix; -1: not known; none: it is no such weight.
  std::optional<int64_t> matmul_rows;
  int readers = 0;  // other tasks that read it
};

struct Task {
  std::string name;
  uint64_t slot_bytes = 0;    // for the slots of what it receives
  uint64_t source_bytes = 0;  // for what it sends, born in its arena
  uint64_t sent_bytes = 0;    // in a step, as far as known
  uint64_t received_bytes = 0;
};

struct Plan {
  uint64_t arena_limit = 0;
  double analysis_seconds = 0;
  int nodes = 0;
  std::vector<Task> tasks;
  std::vector<Edge> edges;
  std::vector<Variable> variables;
};

// Sums and products that stay at the largest number instead of wrapping around.
inline uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
inline uint64_t SaturatingMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

// NumPy's name of a type that TensorFlow's C++ calls `name`: "float" is float32.
std::string NumpyName(const std::string& name);

// "/job:ps/task:0" of a full device name.
std::string TaskOf(const std::string& device);

// Version 1 of the schema in graph_analyzer/schema.json.
std::string PlanJson(const Plan& plan);

}  // namespace rdma_transport::analyzer
