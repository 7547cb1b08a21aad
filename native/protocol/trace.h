// Records single transfers with their times, for a timeline. Recording happens only between Start()
// and StopJson(), in memory allocated for it; otherwise the data path pays one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/counters.h"
#include "protocol/peer_id.h"

namespace rdma_transport {

// Thread-safe.
class Trace {
 public:
  // Set in the handles of credits, clear in those of outstanding buffers.
  static constexpr uint64_t kCreditBit = uint64_t{1} << 63;
  static constexpr uint64_t kMaxEvents = uint64_t{4} << 20;

  static bool On() { return on_.load(std::memory_order_relaxed); }

  // Starts recording up to `max_events` events; further events are only counted. Returns
  // FailedPrecondition if a recording is running.
  static Status Start(uint64_t max_events);
  // Stops the recording, frees its memory, and returns the events in the format that
  // rdma_transport/observe/timeline.py reads.
  static std::string StopJson();
  // Stops the recording and discards the events.
  static void Stop();

  // Returns a pair of names for transfers without counters. Both sides must use the same names. The
  // pairs are never dropped, so call this only while recording.
  static PeerId Ends(const std::string& local, const std::string& remote);

  // The functions below do nothing unless a recording is running.

  // Records a tensor sent between `begin` and now. The receiver returns `handle` when it is done
  // with the tensor; 0 if there is nothing to return.
  static void Sent(PeerId peer, Nanos begin, int64_t step, std::string_view key, uint64_t bytes,
                   Mode mode, uint64_t handle);
  static void Released(PeerId peer, uint64_t handle);
  // Records the notification of a tensor, received at `begin`. Returns a number for HandedOver(),
  // or 0 if it was not recorded. `suffix` is the key's suffix if that arrived separately.
  static uint64_t Arrived(PeerId peer, Nanos begin, int64_t step, std::string_view key,
                          std::string_view suffix, uint64_t bytes, Mode mode);
  // Records that the receiver got the tensor.
  static void HandedOver(uint64_t arrival);

 private:
  static std::atomic<bool> on_;
};

}  // namespace rdma_transport
