// TensorFlow's names of tasks and devices.
#pragma once

#include <string>

#include "absl/strings/match.h"
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

// Returns whether the device is not a processor.
inline bool IsAccelerator(absl::string_view device) {
  return !absl::StrContains(device, "/device:CPU:");
}

}  // namespace rdma_transport
