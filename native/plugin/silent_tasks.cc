#include "plugin/silent_tasks.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace rdma_transport {
namespace {

constexpr Nanos kFirstReport = 10 * kSecond;
constexpr Nanos kReportInterval = 60 * kSecond;
constexpr size_t kMostNamed = 4;

// The calls that wait, and a thread that reports them as long as there are any.
class SilentTasks {
 public:
  // Never destroyed: its thread may run while the process ends.
  static SilentTasks& Get() {
    static auto* tasks = new SilentTasks;
    return *tasks;
  }

  uint64_t Add(const std::string& task, const std::string& address) {
    std::lock_guard<std::mutex> lock(mu_);
    const Nanos now = Now();
    waiting_[++last_] = {task, address, now, now + kFirstReport};
    if (!running_) {
      running_ = true;
      std::thread([this] { Run(); }).detach();
    }
    return last_;
  }

  void Remove(uint64_t number) {
    std::lock_guard<std::mutex> lock(mu_);
    waiting_.erase(number);
    if (waiting_.empty()) changed_.notify_all();
  }

 private:
  struct Waiting {
    std::string task;
    std::string address;
    Nanos since;
    Nanos report_at;
  };

  void Run() {
    std::unique_lock<std::mutex> lock(mu_);
    while (!waiting_.empty()) {
      Nanos next = INT64_MAX;
      for (const auto& [number, one] : waiting_) next = std::min(next, one.report_at);
      const Nanos now = Now();
      if (next > now) {
        changed_.wait_for(lock, std::chrono::nanoseconds(next - now));
      } else {
        Report(now);
      }
    }
    running_ = false;
  }

  // Called with `mu_` held.
  void Report(Nanos now) {
    std::string names, first;
    size_t count = 0;
    Nanos longest = 0;
    for (auto& [number, one] : waiting_) {
      if (one.report_at > now) continue;
      one.report_at = now + kReportInterval;
      longest = std::max(longest, now - one.since);
      if (count == 0) first = one.address;
      if (count++ >= kMostNamed) continue;
      names += (names.empty() ? "" : ", ") + one.task + " (" + one.address + ")";
    }
    if (count > kMostNamed) names += " and " + std::to_string(count - kMostNamed) + " more";
    Log(LogLevel::kWarning, "no answer for " + std::to_string(longest / kSecond) + " s from " +
                                names +
                                ", and this task waits. See `rdma-transport doctor --peer " +
                                first + "`, or `rdma-transport doctor` with this task's TF_CONFIG");
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::map<uint64_t, Waiting> waiting_;
  uint64_t last_ = 0;
  bool running_ = false;
};

}  // namespace

tensorflow::StatusCallback ReportSilence(const std::string& task, const std::string& address,
                                         tensorflow::StatusCallback done) {
  const uint64_t number = SilentTasks::Get().Add(task, address);
  return [number, done = std::move(done)](const absl::Status& status) {
    SilentTasks::Get().Remove(number);
    done(status);
  };
}

}  // namespace rdma_transport
