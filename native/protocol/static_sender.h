// The sending side of the static edges of one link.
//
// An edge is static for the shapes of which both sides know type and slots before the tensor
// exists. A tensor then needs only one short notification. Shapes are planned from the graph, or
// promoted after a few tensors. Those that were not used for a while give their memory back when
// others need some. Tensors of other shapes are sent in dynamic mode.
//
// Where the receiver can map the sender's memory, slots are addresses in the sender's arena: a
// tensor allocated there is not moved. Elsewhere slots lie in the receiver's memory, where edges
// share them, and the sender writes into them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fabric/fabric.h"
#include "protocol/key_id.h"
#include "protocol/link_context.h"
#include "protocol/outstanding_buffers.h"
#include "protocol/receiver_slots.h"
#include "protocol/reliable_notifier.h"
#include "protocol/send_outcome.h"
#include "protocol/static_edge.h"
#include "protocol/tensor.h"
#include "protocol/wire.h"

namespace rdma_transport {

// Thread-safe. Notifications for one edge are sent in the order in which they were decided, because
// the edge's lock is held until they are sent. The polling thread does not need that lock while the
// link is up.
class StaticSender {
 public:
  // Set in all cookies of Write().
  static constexpr uint64_t kCookieBit = uint64_t{1} << 63;

  // The arguments must outlive it.
  StaticSender(const LinkContext& context, fabric::Channel* channel, ReliableNotifier* notifier,
               OutstandingBuffers* outstanding);
  ~StaticSender();

  // Makes the edge static at once, with the slots of its pools, until Withdraw().
  void Offer(const PlannedEdge& planned);
  // The edge's graph was removed: demotes the edge.
  void Withdraw(const std::string& key);

  // Gives back, for shapes that nobody offered, what no tensor used since `since`; and since
  // `planned_since` if its plan is gone.
  void GiveBack(Nanos since, Nanos planned_since);
  // Gives back what is not needed, from time to time. Polling thread only.
  void Tick(Nanos now);

  // The link has ended: releases all pools and the sources of writes in progress.
  void Abandon();

  // Returns true if the tensor was sent on its static edge, or failed there, as `outcome` says.
  // Returns false if it must be sent in dynamic mode; it may have been staged.
  bool Send(Outgoing* tensor, SendOutcome* outcome);

  // The receiver wants to read later tensors of the edge, which are then sent in dynamic mode.
  void OnReadLater(uint32_t edge);
  // Where the receiver's messages of slots go.
  ReceiverSlots& receiver_slots() { return receiver_slots_; }
  // A write has ended as `status` says, so its source may change.
  void OnWritten(uint64_t cookie, const Status& status);

  void Report(std::vector<EdgeReport>* reports) const;

 private:
  struct Slot {  // sender-side
    const char* data = nullptr;
    fabric::RemoteSpan span;
    uint64_t used = 0;
    uint32_t generation = 0;
    bool receiver_owned = false;
  };
  // One shape that an edge carries. The fields needed for each tensor come first.
  struct Variant {
    uint32_t number = 0;  // 0 if not static
    uint32_t dtype = 0;
    std::vector<int64_t> dims;
    uint64_t bytes = 0;
    Nanos used = 0;        // when a tensor was sent last
    uint32_t tensors = 0;  // until it is static
    bool offered = false;  // until Withdraw()
    bool planned = false;  // by Offer() or by `plan`
    bool joins_pool = false;
    std::weak_ptr<const EdgePlan> plan;
    uint32_t unknown_buffers = 0;  // buffers in a row that became new slots
    uint32_t receiver_pool = 0;    // of receiver-side slots, while the variant is static
    uint64_t clock = 0;
    std::vector<Slot> slots;
    std::vector<std::shared_ptr<memory::SlotPool>> pools;
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t staged_bytes = 0;
    std::string site;  // as planned, for display
  };
  struct Writing {
    OwnerRef source;
    Nanos begin = 0;
  };
  struct Edge {
    std::mutex mu;
    std::string key;
    std::atomic<bool> read_by_peer{false};
    std::unordered_multimap<size_t, Variant> variants;  // by hash of type and shape
    size_t room = kMinRoom;                             // for variants; more are looked through
  };
  static constexpr size_t kMinRoom = 64;

  bool AtReceiver() const;
  std::shared_ptr<Edge> EdgeOf(std::string_view key);
  void DropCandidatesLocked();
  // Requires the edge's lock:
  Variant* VariantOf(Edge* edge, uint32_t dtype, const int64_t* dims, int rank, uint64_t bytes);
  void DemoteUnused(Edge* edge, Nanos since, Nanos planned_since);
  bool PromoteIfStable(const std::shared_ptr<Edge>& edge, Variant* variant,
                       const std::shared_ptr<const EdgePlan>& plan);
  bool Promote(const std::shared_ptr<Edge>& edge, Variant* variant, uint32_t slots);
  Status Declare(const Edge& edge, const Variant& variant, uint32_t number);
  void Undeclare(Variant* variant, uint32_t number);
  void Demote(Variant* variant);
  bool SendFromSource(Edge* edge, Variant* variant, Outgoing* tensor, SendOutcome* outcome);
  bool SendToReceiver(Edge* edge, Variant* variant, Outgoing* tensor, SendOutcome* outcome);
  bool StageFor(Edge* edge, Variant* variant, Outgoing* tensor);
  Slot* SlotFor(Variant* variant, const Outgoing& tensor, const fabric::RemoteSpan& span,
                bool receiver_owned);
  Slot* Adopt(Variant* variant, const char* data, const fabric::RemoteSpan& span,
              bool receiver_owned);
  void FollowToSite(Variant* variant, const Outgoing& tensor);
  void AddPool(Variant* variant, std::string_view site, size_t bytes);
  void AdoptBlocks(Variant* variant, const memory::SlotPool& pool);
  Status NotifyTensor(StaticMessage message, const Outgoing& tensor, fabric::After after,
                      uint64_t* number);
  void Miss(Variant* variant, const char* reason);

  const LinkContext& context_;
  fabric::Channel* const channel_;
  ReliableNotifier* const notifier_;
  OutstandingBuffers* const outstanding_;
  ReceiverSlots receiver_slots_;

  mutable std::mutex mu_;  // acquired after an edge's lock
  std::unordered_map<KeyId, std::shared_ptr<Edge>, KeyIdHash> edges_;
  std::unordered_map<uint32_t, std::shared_ptr<Edge>> numbered_;
  uint32_t next_number_ = 1;
  uint64_t next_cookie_ = kCookieBit;
  std::map<uint64_t, Writing> writing_;  // by cookie
  std::atomic<bool> grew_{false};        // since the last Tick()
  Nanos next_tick_ = 0;                  // used by Tick()
};

}  // namespace rdma_transport
