// What the transport did, counted where it happens. One set for the process; relaxed atomics.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace rdma_transport {

// How the bytes of one tensor went.
enum class Path : int { kStatic = 0, kDynamic, kInline, kGrpc };
constexpr int kPathCount = 4;
const char* PathName(Path path);

struct PathCounter {
  std::atomic<uint64_t> tensors{0};
  std::atomic<uint64_t> bytes{0};

  void Add(uint64_t byte_count) {
    tensors.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(byte_count, std::memory_order_relaxed);
  }
};

// Counts under names that are not known beforehand: reasons, kinds of errors. Not for hot paths.
class NamedCounter {
 public:
  void Add(const std::string& name) {
    std::lock_guard<std::mutex> lock(mu_);
    ++counts_[name];
  }
  std::map<std::string, uint64_t> Get() const {
    std::lock_guard<std::mutex> lock(mu_);
    return counts_;
  }

 private:
  mutable std::mutex mu_;
  std::map<std::string, uint64_t> counts_;
};

// What became of the static edges.
struct PlanCounters {
  std::atomic<uint64_t> hits{0};              // tensors that went by a slot
  std::atomic<uint64_t> promotions{0};        // edges that were made static
  std::atomic<uint64_t> demotions{0};         // and that are not any more
  std::atomic<uint64_t> slot_allocations{0};  // slots agreed with a peer
  NamedCounter misses;                        // why a tensor of a static edge went another way
};

struct Counters {
  PathCounter sent[kPathCount];
  PathCounter received[kPathCount];
  PathCounter replies_sent;  // of exchanges: elements of the data service
  PathCounter replies_received;
  std::atomic<uint64_t> copied_bytes{0};         // payload copied beside the fabric's own work
  std::atomic<uint64_t> staged_tensors{0};       // copied at the send, into the arena
  std::atomic<uint64_t> inline_copied_bytes{0};  // into and out of notifications
  std::atomic<int64_t> lent_tensors{0};          // that a peer may still read
  std::atomic<uint64_t> late_arrivals{0};        // for steps that had ended
  PlanCounters plan;
  NamedCounter fallback_reasons;
  NamedCounter errors;

  PathCounter& Sent(Path path) { return sent[static_cast<int>(path)]; }
  PathCounter& Received(Path path) { return received[static_cast<int>(path)]; }
};

Counters& GlobalCounters();

}  // namespace rdma_transport
