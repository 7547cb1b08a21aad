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

}  // namespace rdma_transport
