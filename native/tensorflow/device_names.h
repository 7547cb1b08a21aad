// TensorFlow's names of devices.
#pragma once

#include "absl/strings/string_view.h"

namespace rdma_transport {

// "/job:ps/replica:0/task:0" of "/job:ps/replica:0/task:0/device:CPU:0": the name under which a
// worker cache knows a task.
inline absl::string_view WorkerOf(absl::string_view device) {
  return device.substr(0, device.find("/device:"));
}

}  // namespace rdma_transport
