// The sending side of the static edges of one link.
//
// An edge is static for the shapes of which both sides know type and slots before the tensor
// exists. A tensor then needs only one short notification. Shapes are planned from the graph, or
// promoted after a few tensors. Those that were not used for a while give their memory back when
// others need some. Tensors of other shapes are sent in dynamic mode.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "protocol/key_id.h"
#include "protocol/receiver_slots.h"
#include "protocol/sender_slots.h"

namespace rdma_transport {

// Thread-safe. Notifications for one edge are sent in the order in which they were decided, because
// the edge's lock is held until they are sent. The polling thread does not need that lock while the
// link is up.
class StaticSender {
 public:
  // The arguments must outlive it.
  StaticSender(const LinkContext& context, fabric::Channel* channel, ReliableNotifier* notifier,
               OutstandingBuffers* outstanding);

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
  // Where the receiver's messages of slots go, and the ends of writes.
  ReceiverSlots& receiver_slots() { return receiver_slots_; }

  void Report(std::vector<EdgeReport>* reports);

 private:
  struct Edge {
    std::mutex mu;
    std::string key;
    std::atomic<bool> read_by_peer{false};
    std::unordered_multimap<size_t, EdgeVariant> variants;  // by hash of type and shape
    size_t room = kMinRoom;                                 // for variants; more are looked through
  };
  static constexpr size_t kMinRoom = 64;

  std::shared_ptr<Edge> EdgeOf(std::string_view key);
  void DropCandidatesLocked();
  // Requires the edge's lock:
  EdgeVariant* VariantOf(Edge* edge, uint32_t dtype, const int64_t* dims, int rank, uint64_t bytes);
  void DemoteUnused(Edge* edge, Nanos since, Nanos planned_since);
  bool PromoteIfStable(const std::shared_ptr<Edge>& edge, EdgeVariant* variant,
                       const std::shared_ptr<const EdgePlan>& plan);
  bool Promote(const std::shared_ptr<Edge>& edge, EdgeVariant* variant, uint32_t wanted);
  Status Declare(const Edge& edge, const EdgeVariant& variant, uint32_t number);
  void Undeclare(EdgeVariant* variant, uint32_t number);
  void Demote(EdgeVariant* variant);
  // Known when the channel is connected, which may choose the fabric.
  StaticSlots* slots();

  const LinkContext& context_;
  fabric::Channel* const channel_;
  ReliableNotifier* const notifier_;
  SenderSlots sender_slots_;
  ReceiverSlots receiver_slots_;

  std::mutex mu_;  // acquired after an edge's lock
  std::unordered_map<KeyId, std::shared_ptr<Edge>, KeyIdHash> edges_;
  std::unordered_map<uint32_t, std::shared_ptr<Edge>> numbered_;
  uint32_t next_number_ = 1;
  std::atomic<bool> grew_{false};  // since the last Tick()
  Nanos next_tick_ = 0;            // used by Tick()
};

}  // namespace rdma_transport
