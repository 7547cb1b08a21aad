// One reliable connection: its queued and posted work requests, and the order in which they end.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "fabric/verbs/adapter.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// A work request of this side.
struct Work {
  enum class Kind : uint8_t { kWrite, kRead, kBatch, kCredit };
  Kind kind = Kind::kWrite;
  bool last = false;      // the last of its transfer; its end is reported
  bool signaled = false;  // request a completion soon
  uint32_t length = 0;
  LocalEnd local_end;
  uint32_t rkey = 0;
  uint32_t immediate = 0;
  const char* local = nullptr;
  uint64_t remote = 0;
  uint64_t cookie = 0;  // kWrite, kRead
  uint64_t end = 0;     // kBatch: position behind it, see Batch
  uint64_t number = 0;  // kBatch: number of its last notification
};

// "a write of 4096 bytes"
std::string NameOf(const Work& work);

// Thread-compatible; guarded by the channel's lock.
class QueuePair {
 public:
  // The wr_id of each completion has `tag` in its upper half.
  QueuePair(Adapter* adapter, uint32_t tag) : adapter_(adapter), tag_(tag) {}
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // Creates the queue pair with room for `receives`. Replenish() posts them.
  Status Create(int depth, int receives);
  // Connects to the peer's queue pair. Over RoCE it may take a second. Meanwhile nothing else may
  // be called.
  Status Connect(const ChannelAddress& peer);
  // Where its completions come.
  const CompletionQueue* queue() const { return queue_; }
  uint32_t number() const { return pair_->qp_num; }
  uint32_t first_psn() const { return first_psn_; }

  void Push(const Work& work) {
    waiting_.push_back(work);
    if (work.kind == Work::Kind::kCredit) ++waiting_credits_;
  }
  // Posts, in order, all work requests for which there is room; none if it is broken.
  Status Pump();
  bool HasWaiting() const { return !waiting_.empty(); }
  int waiting_credits() const { return waiting_credits_; }
  // Returns whether a completion will arrive even if nothing more is pushed.
  bool AnswerDue() const { return HasWaiting() || (!posted_.empty() && unsignalled_ == 0); }
  // Returns which of all its work requests is the first that has not ended.
  uint64_t oldest() const { return posted_.empty() ? sequence_ + 1 : posted_.front().sequence; }

  // Returns, one per call and in order, the work requests that a completion ended, then false.
  // `itself` is set for the request of the completion; all requests before it succeeded.
  bool TakeEnded(uint64_t wr_id, Work* work, bool* itself);
  static bool IsReceive(uint64_t wr_id) { return (wr_id & kReceiveBit) != 0; }
  static uint32_t TagOf(uint64_t wr_id) { return static_cast<uint32_t>(wr_id >> 32); }

  // A receive was consumed. Replenish() posts consumed receives again.
  void OnReceive() { --receives_posted_; }
  Status Replenish();

  // Makes all operations of both sides fail, flushes those that are posted, and drops what waits.
  void Break();
  // Returns whether all posted work was flushed.
  bool Drained() const { return posted_.empty() && receives_posted_ == 0; }

 private:
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 31;
  static constexpr uint64_t kSequenceMask = kReceiveBit - 1;

  struct Posted {
    Work work;
    uint64_t sequence;
  };

  Status ToInit();
  bool WantsSignal(const Work& work);
  void Fill(const Work& work, ibv_send_wr* request, ibv_sge* element) const;

  Adapter* const adapter_;
  const uint32_t tag_;
  ibv_qp* pair_ = nullptr;
  CompletionQueue* queue_ = nullptr;
  int reserved_ = 0;
  uint32_t first_psn_ = 0;
  uint32_t depth_ = 0;
  uint32_t inline_max_ = 0;
  bool broken_ = false;
  int receives_ = 0;
  int receives_posted_ = 0;
  uint64_t sequence_ = 0;
  uint32_t unsignalled_ = 0;
  uint64_t unsignalled_bytes_ = 0;
  uint64_t signal_bytes_ = 0;
  std::deque<Work> waiting_;
  int waiting_credits_ = 0;  // credits among waiting_
  std::deque<Posted> posted_;
};

}  // namespace rdma_transport::fabric::verbs
