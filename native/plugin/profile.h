// What TensorFlow's profiler shows of the transport. Without a running profiler, each event costs
// one load.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "protocol/counters.h"
#include "tsl/profiler/lib/connected_traceme.h"

namespace rdma_transport {

// Identifies a tensor in events.
struct ProfiledTensor {
  int64_t step;
  absl::string_view key;  // of the rendezvous
  absl::string_view peer;
};

// Returns whether a profiler records such events.
inline bool ProfilerRuns() {
  return tsl::profiler::TraceMe::Active(tsl::profiler::TraceMeLevel::kInfo);
}

// The event "rdma send", from construction to destruction. Not thread-safe.
class ProfiledSend {
 public:
  ProfiledSend(const ProfiledTensor& tensor, uint64_t bytes) {
    if (ProfilerRuns()) Start(tensor, bytes);
  }
  // Adds how the tensor was sent.
  void SetMode(Mode mode);

 private:
  void Start(const ProfiledTensor& tensor, uint64_t bytes);

  std::optional<tsl::profiler::TraceMeProducer> event_;
};

// The event "rdma receive", from construction to destruction. It has the id of the tensor's "rdma
// send", also on another task, so the profiler can connect them. Not thread-safe.
class ProfiledReceive {
 public:
  ProfiledReceive(const ProfiledTensor& tensor, uint64_t bytes, Mode mode) {
    if (ProfilerRuns()) Start(tensor, bytes, mode);
  }

 private:
  void Start(const ProfiledTensor& tensor, uint64_t bytes, Mode mode);

  std::optional<tsl::profiler::TraceMeConsumer> event_;
};

// An event that may end on another thread than it began on, where it is shown. TensorFlow's own
// events of this kind, TraceMe::ActivityStart(), get lost at times when they change threads.
class ProfiledSpan {
 public:
  void Begin() {
    if (ProfilerRuns()) begin_ = tsl::profiler::GetCurrentTimeNanos();
  }
  // Only one of these may be called, once.
  // "rdma wait", from a request for a tensor to its delivery.
  void EndWait(const ProfiledTensor& tensor) const {
    if (begin_ != 0 && ProfilerRuns()) RecordWait(tensor);
  }
  // "rdma copy", of a tensor from or to an accelerator.
  void EndCopy(absl::string_view direction, uint64_t bytes) const {
    if (begin_ != 0 && ProfilerRuns()) RecordCopy(direction, bytes);
  }

 private:
  void RecordWait(const ProfiledTensor& tensor) const;
  void RecordCopy(absl::string_view direction, uint64_t bytes) const;

  int64_t begin_ = 0;  // 0: no profiler ran
};

}  // namespace rdma_transport
