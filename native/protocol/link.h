// A channel to one incarnation of a peer. It sends tensors, delivers those that arrive, keeps
// outstanding buffers alive, and detects a dead or silent peer.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/liveness.h"
#include "fabric/fabric.h"
#include "protocol/bootstrap.h"
#include "protocol/calls.h"
#include "protocol/dynamic_receiver.h"
#include "protocol/dynamic_sender.h"
#include "protocol/link_context.h"
#include "protocol/mailbox.h"
#include "protocol/outstanding_buffers.h"
#include "protocol/pending_recv.h"
#include "protocol/reliable_notifier.h"
#include "protocol/send_outcome.h"
#include "protocol/static_receiver.h"
#include "protocol/static_sender.h"
#include "protocol/step_aborts.h"
#include "protocol/task_report.h"
#include "protocol/tensor.h"
#include "protocol/unacked_sends.h"
#include "protocol/wire.h"

namespace rdma_transport {

// Receives the events of links, on the polling thread unless noted. The link holds no lock, so the
// calls may send on it. A `Link*` is valid during the call; a shared one may be kept. The link must
// not be used after OnLinkDown(), except while it is InUse().
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  // The link can send. Comes before its other events, unless it goes down without having come up.
  virtual void OnLinkUp(const std::shared_ptr<class Link>& link) = 0;
  // `was_up` tells whether OnLinkUp() was called. Unless the code is Unavailable, the peer may be
  // alive and the link InUse().
  virtual void OnLinkDown(const std::shared_ptr<class Link>& link, const Status& status,
                          bool was_up) = 0;
  // Follows OnLinkDown() if the peer may be alive: the link is no longer InUse().
  virtual void OnLinkReleased(const std::shared_ptr<class Link>& link) = 0;
  // The peer sent a tensor, or notified that the tensor waits there for gRPC (`arrival.pull`). The
  // owner decides how long the memory behind `arrival` is used: dropping it releases that memory.
  // If `arrival.channel` is set, the bytes are still at the peer: see ReadThenDeliver().
  virtual void OnArrival(int64_t step, const KeyId& key, Arrival arrival) = 0;
  // The peer restarted the step: discard what arrived for it on this link.
  virtual void OnRestart(class Link* link, int64_t step, uint32_t generation) = 0;
  // The peer has confirmed this task's restart. What it sent before has arrived.
  virtual void OnRestarted(class Link* link, int64_t step) = 0;
  // The peer aborted the step. Each of its links brings the abort, after the tensors that the peer
  // sent on that link before.
  virtual void OnAbort(class Link* link, StepAbort abort) = 0;
  // The peer calls this task's worker service. The owner answers the call, now or later.
  virtual void OnCall(std::shared_ptr<IncomingCall> call) = 0;
  // Tick() must be called regularly again. Called from any thread.
  virtual void ArmTimer() = 0;
  // Follows OnLinkDown() with the tensors that may not have arrived.
  virtual void OnLost(const std::shared_ptr<class Link>& link,
                      std::vector<UnackedTensor> tensors) = 0;
};

// Thread-safe, except where noted.
class Link final : public fabric::ChannelHandler, public std::enable_shared_from_this<Link> {
 public:
  Link(const LinkContext& context, LinkOwner* owner, Nanos deadline)
      : context_(context), owner_(owner), deadline_(deadline) {}

  Status Open();
  fabric::Channel* channel() const { return channel_.get(); }

  // The peer's identity. Must be set before Connect(); the link may end meanwhile.
  void set_remote(Identity remote) {
    std::lock_guard<std::mutex> lock(remote_mu_);
    remote_ = std::move(remote);
  }
  Identity remote() const {
    std::lock_guard<std::mutex> lock(remote_mu_);
    return remote_;
  }
  // The ID that the request of the link carries; see pairing.h. As above.
  void set_id(std::string id) { id_ = std::move(id); }
  const std::string& id() const { return id_; }
  PeerId peer() const { return &context_.traffic->tasks; }
  // When the link came up, in seconds since 1970.
  double since() const { return since_; }
  bool up() const { return up_.load(std::memory_order_acquire); }

  // Fills in the fields that describe this link, which is up.
  void Describe(PeerStats* stats) const;

  // Sends the tensor in the best mode. See SendOutcome for errors.
  SendOutcome Send(Outgoing* tensor);
  // Keeps a sent tensor until its notification is known to have arrived. If the link ends first,
  // LinkOwner::OnLost() receives it. `number` is from Send(). Returns false and leaves `tensor`
  // untouched if the link has already ended.
  bool KeepUntilDelivered(uint64_t number, UnackedTensor* tensor) {
    Confirm();
    return unacked_.Keep(number, tensor);
  }
  // Drops the kept tensors that have arrived by now.
  void Confirm() { unacked_.OnDelivered(channel_->Delivered()); }
  // Notifies the receiver that the tensor waits here for TensorFlow's transport.
  void SendPull(int64_t step, std::string_view key, const std::string& reason);
  // Makes the peer discard what this task sent for the step, because a new generation begins.
  void SendRestart(int64_t step, uint32_t generation);
  // Returns true until the peer has confirmed the last SendRestart() for the step.
  bool AwaitsRestarted(int64_t step) const;
  // Notifies the peer of a step aborted here, as soon as there is room. A silent peer is notified
  // too: when it resumes, it must not wait for tensors that were not sent.
  void SendAbort(const StepAbort& abort);

  // Calls the peer's worker service. Returns the call's number, or 0 if nothing was sent: the link
  // does not carry the call now. Otherwise `call` gets the reply, or fails with the link.
  uint64_t Call(CallMethod method, std::string_view request,
                const std::shared_ptr<PendingCall>& call);
  // The caller, which has claimed the call, no longer waits for its reply.
  void CancelCall(uint64_t number) { calls_->Cancel(number); }

  StaticSender& static_edges() { return *static_sender_; }
  // Number of outstanding buffers.
  size_t outstanding() const { return outstanding_.size(); }
  // Returns true if a peer that is alive may still read outstanding buffers or write into slots
  // here. Polling thread only.
  bool InUse() const { return outstanding_.size() != 0 || static_receiver_->HasReceiverSlots(); }
  // Called when the peer can no longer read here.
  void ReleaseOutstanding() { outstanding_.ReleaseAll(); }

  // Reads the bytes of `arrival` into local memory, then completes `recv`, which the caller has
  // claimed.
  void ReadThenDeliver(Arrival arrival, std::shared_ptr<PendingRecv> recv) {
    dynamic_receiver_->ReadThenDeliver(std::move(arrival), std::move(recv), shared_from_this());
    owner_->ArmTimer();
  }

  // Makes `recv` fail with the link. Returns false and sets `reason` if the peer is lost or silent.
  bool AddPending(const std::shared_ptr<PendingRecv>& recv, Status* reason) {
    return recvs_.Add(recv, reason);
  }

  // Sends a ping, so that a link that is broken unnoticed ends.
  void Probe();

  // Checks deadlines and retries notifications. Returns true if it must be called again. With
  // `excuse`, this process itself was not running, so silence of the peer does not count. Polling
  // thread only.
  bool Tick(Nanos now, bool excuse);

  // ChannelHandler, on the polling thread:
  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnDelivered(uint64_t number) override { unacked_.OnDelivered(number); }
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;
  void OnReleased() override { owner_->OnLinkReleased(shared_from_this()); }

 private:
  Status Dispatch(const char* data, size_t length);
  Status DispatchControl(const ControlMessage& message);
  Status HandleTensor(const char* data, size_t length);
  Status HandleStatic(const char* data, size_t length);
  Status HandleEdge(const char* data, size_t length);
  Status HandleSlot(const char* data, size_t length);
  Status HandlePoolSlot(const char* data, size_t length);
  Status HandleAbort(const char* data, size_t length);
  Status HandleCall(const char* data, size_t length);
  Status HandleReply(const char* data, size_t length);
  void HandleRestart(const ControlMessage& message);
  void HandleRestarted(const ControlMessage& message);
  SendOutcome SendBest(Outgoing* tensor);
  Arrival NewArrival();
  // Returns true if something here waits for the peer.
  bool AwaitsPeer() const;
  void Freeze(Nanos silence);
  void Thaw();

  const LinkContext context_;
  LinkOwner* const owner_;
  const Nanos deadline_;  // until which the connection must come up
  std::mutex open_mu_;    // held while what follows is made
  std::shared_ptr<fabric::Channel> channel_;
  mutable std::mutex remote_mu_;
  Identity remote_;
  std::string id_;
  double since_ = 0;  // set before up_
  std::atomic<bool> up_{false};
  std::atomic<bool> frozen_{false};

  OutstandingBuffers outstanding_;
  std::shared_ptr<ReliableNotifier> notifier_;
  std::unique_ptr<DynamicSender> dynamic_sender_;
  std::unique_ptr<DynamicReceiver> dynamic_receiver_;
  std::unique_ptr<StaticSender> static_sender_;
  std::unique_ptr<StaticReceiver> static_receiver_;
  std::shared_ptr<Calls> calls_;
  PendingRecvList recvs_;

  mutable std::mutex restarts_mu_;
  std::map<int64_t, uint32_t> restarts_;  // generations that the peer has not confirmed, by step

  UnackedSends unacked_;
  Liveness liveness_;  // polling thread only
};

}  // namespace rdma_transport
