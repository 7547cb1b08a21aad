// One reliable connection: what waits to be posted, what is posted, and in which order it ended.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "fabric/verbs/adapter.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/windows.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// A work request of ours.
struct Work {
  enum class Kind : uint8_t { kWrite, kRead, kBatch, kCredit, kBind };
  Kind kind = Kind::kWrite;
  bool last = false;      // of its transfer on this queue pair: its completion is told
  bool signaled = false;  // its completion must come soon
  uint32_t length = 0;
  LocalEnd local_end;
  uint32_t rkey = 0;
  uint32_t immediate = 0;
  const char* local = nullptr;
  uint64_t remote = 0;
  uint64_t cookie = 0;             // kWrite, kRead
  uint64_t end = 0;                // kBatch: see Batch
  uint64_t number = 0;             // kBatch: its last notification
  const Window* window = nullptr;  // kBind
  // kBatch: how many transfers of each other queue pair must have ended before it may leave.
  std::array<uint32_t, kMaxQueuePairs> after = {};
};

// Thread-compatible: the channel's lock guards it.
class QueuePair {
 public:
  // `tag` comes back in the upper half of all completions' wr_id.
  QueuePair(Adapter* adapter, uint32_t tag) : adapter_(adapter), tag_(tag) {}
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // Makes it, with `receives` receives posted.
  Status Create(int depth, int receives);
  Status Connect(const ChannelAddress& peer, int index);
  uint32_t number() const { return pair_->qp_num; }
  uint32_t first_psn() const { return first_psn_; }

  void Push(const Work& work) {
    waiting_.push_back(work);
    if (work.kind == Work::Kind::kCredit) ++waiting_credits_;
  }
  // Posts what may be posted, in order. `ended`: how many transfers ended on each queue pair of the
  // channel.
  Status Pump(const std::array<uint32_t, kMaxQueuePairs>& ended);
  bool HasWaiting() const { return !waiting_.empty(); }
  int waiting_credits() const { return waiting_credits_; }
  // Whether a completion will come without anything more being pushed.
  bool AnswerDue() const { return HasWaiting() || (!posted_.empty() && unsignalled_ == 0); }

  // The work requests that a completion says have ended, in order: until false. `itself`: this is
  // the one that it is of; those before it succeeded in any case.
  bool TakeEnded(uint64_t wr_id, Work* work, bool* itself);
  static bool IsReceive(uint64_t wr_id) { return (wr_id & kReceiveBit) != 0; }
  static uint32_t TagOf(uint64_t wr_id) { return static_cast<uint32_t>(wr_id >> 32); }

  // A receive was consumed; Replenish() posts anew what was.
  void OnReceive() { --receives_posted_; }
  Status Replenish();

  // No operation of either side succeeds any more; everything outstanding is flushed.
  void Break();
  // Nothing outstanding: all flushed.
  bool Drained() const { return posted_.empty() && receives_posted_ == 0; }

 private:
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 31;
  static constexpr uint64_t kSequenceMask = kReceiveBit - 1;

  struct Posted {
    Work work;
    uint64_t sequence;
  };

  Status ToInit();
  bool MayLeave(const Work& work, const std::array<uint32_t, kMaxQueuePairs>& ended) const;
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
  int receives_ = 0;
  int receives_posted_ = 0;
  uint64_t sequence_ = 0;
  uint32_t unsignalled_ = 0;
  uint64_t unsignalled_bytes_ = 0;
  uint64_t signal_bytes_ = 0;
  std::deque<Work> waiting_;
  int waiting_credits_ = 0;  // among them
  std::deque<Posted> posted_;
};

}  // namespace rdma_transport::fabric::verbs
