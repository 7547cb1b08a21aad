// Says which tasks keep this one waiting at the start of a job. TensorFlow itself logs nothing
// while it waits, and never gives up.
#pragma once

#include <string>

#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace rdma_transport {

// Returns what to call in place of `done` when `task` answers. Logs the task and its address if
// that takes longer than ten seconds, and again every minute. Thread-safe.
tensorflow::StatusCallback ReportSilence(const std::string& task, const std::string& address,
                                         tensorflow::StatusCallback done);

}  // namespace rdma_transport
