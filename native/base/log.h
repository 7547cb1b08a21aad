// One line per event worth a person's time, always with the tag "rdma:" in front.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/clock.h"

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

// For lines that somebody outside can cause as often as they like: writes the first few of an
// interval, then counts. The first line of a later interval comes with the number of those that
// were left out. Thread-safe.
class LogLimiter {
 public:
  explicit LogLimiter(LogLevel level, uint64_t most = 5, Nanos interval = 10 * kSecond)
      : level_(level), most_(most), interval_(interval) {}
  void Log(const std::string& message) { LogAt(Now(), message); }
  void LogAt(Nanos now, const std::string& message);

 private:
  const LogLevel level_;
  const uint64_t most_;  // lines of one interval
  const Nanos interval_;
  std::mutex mu_;
  Nanos began_ = 0;
  uint64_t lines_ = 0;  // of this interval, with those left out
};

}  // namespace rdma_transport
