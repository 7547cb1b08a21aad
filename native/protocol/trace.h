// Single transfers with their times, for a timeline. Kept only between Start() and StopJson(), in
// memory that is there only then; otherwise the data path pays one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/counters.h"

namespace rdma_transport {

// Any thread may call anything.
class Trace {
 public:
  // The bit of a handle that is a credit's; the others are loans'.
  static constexpr uint64_t kCreditBit = uint64_t{1} << 63;
  static constexpr uint64_t kMaxEvents = uint64_t{4} << 20;

  static bool On() { return on_.load(std::memory_order_relaxed); }

  // Keeps up to `most_events` from now on, and counts what does not fit. FailedPrecondition: it is
  // on already.
  static Status Start(uint64_t most_events);
  // Ends it and lets go of the memory. All that was kept, as rdma_transport/observe/timeline.py
  // reads it.
  static std::string StopJson();
  // The same for nobody.
  static void Stop();

  // Two ends whose traffic nobody counts, under names that both sides know them by. For who finds
  // it on, as they stay for the life of the process: once for each pair of names.
  static const Traffic& Ends(const std::string& local, const std::string& remote);

  // The rest does nothing while it is off.

  // A tensor was sent, by calls between `begin` and now; the receiver gives `handle` back when it
  // is done with it. 0: it has nothing to give back.
  static void Sent(const Traffic& traffic, Nanos begin, int64_t step, std::string_view key,
                   uint64_t bytes, Mode mode, uint64_t handle);
  static void Released(const Traffic& traffic, uint64_t handle);
  // Word of a tensor came at `begin`. What it returns is for HandedOver(), when the receiver gets
  // the tensor; 0: it is not kept. `tail` is the end of the key, where it comes for itself.
  static uint64_t Arrived(const Traffic& traffic, Nanos begin, int64_t step, std::string_view key,
                          std::string_view tail, uint64_t bytes, Mode mode);
  static void HandedOver(uint64_t arrival);

 private:
  static std::atomic<bool> on_;
};

}  // namespace rdma_transport
