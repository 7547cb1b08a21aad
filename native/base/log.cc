#include "base/log.h"

#include <cstdio>

namespace rdma_transport {
namespace {

void WriteToStderr(LogLevel level, const std::string& line) {
  static constexpr char kLetters[] = "DIWE?";
  std::fprintf(stderr, "%c %s\n", kLetters[static_cast<int>(level)], line.c_str());
}

std::atomic<LogSink> g_sink{&WriteToStderr};
std::atomic<LogLevel> g_level{LogLevel::kInfo};

}  // namespace

void SetLogSink(LogSink sink) { g_sink.store(sink == nullptr ? &WriteToStderr : sink); }

void SetLogLevel(LogLevel level) { g_level.store(level); }

bool LogEnabled(LogLevel level) {
  return level >= g_level.load(std::memory_order_relaxed) && level < LogLevel::kOff;
}

void Log(LogLevel level, const std::string& message) {
  if (LogEnabled(level)) g_sink.load()(level, "rdma: " + message);
}

void LogLimiter::LogAt(Nanos now, const std::string& message) {
  uint64_t left_out = 0;
  bool last = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (began_ == 0 || now - began_ >= interval_) {
      left_out = lines_ > max_ ? lines_ - max_ : 0;
      began_ = now;
      lines_ = 0;
    }
    if (++lines_ > max_) return;
    last = lines_ == max_;
  }
  const std::string seconds = std::to_string(interval_ / kSecond) + " s";
  if (left_out > 0) {
    rdma_transport::Log(level_,
                        std::to_string(left_out) + " lines like the next one were left out");
  }
  rdma_transport::Log(level_,
                      message + (last ? " (no more lines like this for " + seconds + ")" : ""));
}

}  // namespace rdma_transport
