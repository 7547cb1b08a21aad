// Counters of what the transport did, with relaxed atomics. Traffic is counted per peer, everything
// else per process. counter_table.cc describes them and reports them to users.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/histogram.h"
#include "protocol/peer_id.h"

namespace rdma_transport {

// How one tensor was sent.
enum class Mode : int { kStatic = 0, kDynamic, kInline, kGrpc };
constexpr int kModeCount = 4;
const char* ModeName(Mode mode);

// Thread-safe.
struct ModeCounter {
  std::atomic<uint64_t> tensors{0};
  std::atomic<uint64_t> bytes{0};

  void Add(uint64_t byte_count) {
    tensors.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(byte_count, std::memory_order_relaxed);
  }
};

// Counts by names that are not known in advance, such as reasons and kinds of errors. Thread-safe,
// but not for hot paths.
//
// Numbers in a name, such as sizes and addresses, become "N", so that a reason has one name. There
// are at most kMaxNames names; later ones are counted as kOther.
class NamedCounter {
 public:
  static constexpr size_t kMaxNames = 64;
  static constexpr size_t kLongestName = 256;
  static constexpr char kOther[] = "other";

  void Add(const std::string& name);
  std::map<std::string, uint64_t> Get() const {
    std::lock_guard<std::mutex> lock(mu_);
    return counts_;
  }

 private:
  mutable std::mutex mu_;
  std::map<std::string, uint64_t> counts_;
};

// Counters of static edges.
struct PlanCounters {
  std::atomic<uint64_t> hits{0};              // tensors sent in a slot
  std::atomic<uint64_t> promotions{0};        // edges made static
  std::atomic<uint64_t> demotions{0};         // edges that are no longer static
  std::atomic<uint64_t> slot_allocations{0};  // slots agreed on with a peer
  NamedCounter misses;                        // why a tensor of a static edge used another mode
};

// Traffic between a task of this process and a remote one, on all links. Sending threads and the
// receiving thread write to separate cache lines.
struct Traffic {
  Traffic(std::string local, std::string remote) : tasks{std::move(local), std::move(remote)} {}

  const TaskPair tasks;
  alignas(64) ModeCounter sent[kModeCount];
  alignas(64) ModeCounter received[kModeCount];
  Histogram receive_time[kModeCount];  // from the beginning of a receive to its tensor
  Histogram read_time;                 // from the start of a one-sided operation to its completion
  alignas(64) Histogram write_time;

  ModeCounter& Sent(Mode mode) { return sent[static_cast<int>(mode)]; }
  ModeCounter& Received(Mode mode) { return received[static_cast<int>(mode)]; }
  Histogram& Waited(Mode mode) { return receive_time[static_cast<int>(mode)]; }
  bool Unused() const {
    for (int i = 0; i < kModeCount; ++i) {
      if (sent[i].tensors.load() != 0 || received[i].tensors.load() != 0) return false;
    }
    return true;
  }
};

// All Traffic objects ever created. They live as long as the process, so that sums never shrink.
// Thread-safe.
class Traffics {
 public:
  Traffic* Make(const std::string& local, const std::string& remote) {
    std::lock_guard<std::mutex> lock(mu_);
    return &all_.emplace_back(local, remote);
  }
  template <typename Visitor>
  void ForEach(Visitor visit) const {
    std::lock_guard<std::mutex> lock(mu_);
    for (const Traffic& traffic : all_) visit(traffic);
  }

 private:
  mutable std::mutex mu_;
  std::deque<Traffic> all_;
};

// Thread-safe.
struct Counters {
  Traffics traffics;
  ModeCounter replies_sent;  // of RPC calls: elements of tf.data service
  ModeCounter replies_received;
  std::atomic<uint64_t> calls_by_fabric{0};  // RunGraph calls of other tasks
  std::atomic<uint64_t> calls_by_grpc{0};
  std::atomic<uint64_t> copied_bytes{0};         // payload copied, except by the fabric itself
  std::atomic<uint64_t> staged_tensors{0};       // copied into the arena when sent
  std::atomic<uint64_t> device_copied_bytes{0};  // out of and into memory of accelerators
  std::atomic<uint64_t> device_direct_bytes{0};  // read or written there by cards
  std::atomic<uint64_t> inline_copied_bytes{0};  // into and out of notifications
  std::atomic<int64_t> outstanding_tensors{0};   // tensors that peers may still read
  std::atomic<uint64_t> late_tensors{0};         // arrived after their step had ended
  PlanCounters plan;
  NamedCounter fallback_reasons;
  NamedCounter collectives;        // by TensorFlow's name of the implementation
  NamedCounter direct_reductions;  // by what carried them
  NamedCounter ring_reasons;       // why reductions used TensorFlow's ring
  NamedCounter errors;
};

// The counters of this process. They are never destroyed.
Counters& GlobalCounters();

}  // namespace rdma_transport
