// What a part of a test logs.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "base/log.h"

namespace rdma_transport::testing {

// The lines of a block that have `part` in them.
class LinesWith {
 public:
  explicit LinesWith(std::string part) {
    part_ = std::move(part);
    count_ = 0;
    SetLogLevel(LogLevel::kInfo);
    SetLogSink([](LogLevel, const std::string& line) {
      count_ += line.find(part_) != std::string::npos ? 1 : 0;
    });
  }
  ~LinesWith() {
    SetLogSink(nullptr);
    SetLogLevel(LogLevel::kOff);
  }
  int count() const { return count_; }

 private:
  static inline std::string part_;
  static inline std::atomic<int> count_{0};
};

}  // namespace rdma_transport::testing
