// Writes the project's log lines to TensorFlow's log.
#pragma once

#include <string>

#include "base/log.h"

namespace rdma_transport {

// A LogSink.
void WriteToTensorFlowLog(LogLevel level, const std::string& line);

}  // namespace rdma_transport
