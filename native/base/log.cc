#include "base/log.h"

#include <cstdio>
#include <ctime>

namespace rdma_transport {
namespace {

void WriteToStderr(LogLevel level, const std::string& line) {
  static constexpr char kLetters[] = "DIWE?";
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local = {};
  localtime_r(&now.tv_sec, &local);
  char time[32] = {};
  std::strftime(time, sizeof(time), "%F %T", &local);
  std::fprintf(stderr, "%s.%06ld: %c %s\n", time, now.tv_nsec / 1000,
               kLetters[static_cast<int>(level)], line.c_str());
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
