// One line per event worth a person's time, always with the tag "rdma:" in front.
#pragma once

#include <atomic>
#include <string>

namespace rdma_transport {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Receives every line at or above the level; called from any thread, must not block for long.
using LogSink = void (*)(LogLevel level, const std::string& line);

// Where lines go; the default writes them to standard error. The TensorFlow layer puts
// TensorFlow's own logger here.
void SetLogSink(LogSink sink);
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
void Log(LogLevel level, const std::string& message);

}  // namespace rdma_transport
