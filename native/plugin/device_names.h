// TensorFlow's names of tasks and devices.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace rdma_transport {

inline std::string TaskName(const std::string& job, int index) {
  return "/job:" + job + "/replica:0/task:" + std::to_string(index);
}

// "/job:ps/replica:0/task:0" of "/job:ps/replica:0/task:0/device:CPU:0": the name under which a
// worker cache knows a task.
inline absl::string_view WorkerOf(absl::string_view device) {
  return device.substr(0, device.find("/device:"));
}

}  // namespace rdma_transport
