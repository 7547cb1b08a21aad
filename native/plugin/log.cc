#include "plugin/log.h"

#include "tensorflow/core/platform/logging.h"

namespace rdma_transport {

void WriteToTensorFlowLog(LogLevel level, const std::string& line) {
  switch (level) {
    case LogLevel::kDebug:  // TensorFlow's debug level would hide lines that were requested
    case LogLevel::kInfo:
      LOG(INFO) << line;
      break;
    case LogLevel::kWarning:
      LOG(WARNING) << line;
      break;
    default:
      LOG(ERROR) << line;
      break;
  }
}

}  // namespace rdma_transport
