// Logging: one line per event that matters to users, prefixed with "rdma:". Lines look like those
// of TensorFlow, but only the level here decides which are written: a job that hides TensorFlow's
// must see that it fell back to gRPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace rdma_transport {

// The importance of a line. At a log level, lines of lower levels are dropped; kOff drops all.
enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Receives every line at or above the log level. Called from any thread; must not block.
using LogSink = void (*)(LogLevel level, const std::string& line);

// Sets the destination of log lines; null is the default, standard error.
void SetLogSink(LogSink sink);
// Thread-safe, as are all functions here. The default is kInfo.
void SetLogLevel(LogLevel level);
// Returns whether Log() writes lines of this level.
bool LogEnabled(LogLevel level);
void Log(LogLevel level, const std::string& message);

// Limits log lines that remote parties can trigger at will. Writes the first `max` lines of an
// interval and counts the rest; the first line of a later interval reports the count. Thread-safe.
class LogLimiter {
 public:
  explicit LogLimiter(LogLevel level, uint64_t max = 5, Nanos interval = 10 * kSecond)
      : level_(level), max_(max), interval_(interval) {}
  void Log(const std::string& message) { LogAt(Now(), message); }
  void LogAt(Nanos now, const std::string& message);

 private:
  const LogLevel level_;
  const uint64_t max_;  // lines per interval
  const Nanos interval_;
  std::mutex mu_;
  Nanos began_ = 0;
  uint64_t lines_ = 0;  // of this interval, including dropped lines
};

}  // namespace rdma_transport
