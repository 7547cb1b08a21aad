// The project's log lines in TensorFlow's own log.
#pragma once

#include <string>

#include "base/log.h"

namespace rdma_transport {

// A LogSink.
void WriteToTensorFlowLog(LogLevel level, const std::string& line);

}  // namespace rdma_transport
