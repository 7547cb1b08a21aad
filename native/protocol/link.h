// One channel to one life of a peer: sends tensors over it, hands out what comes, keeps what is
// lent alive, and notices when the peer is dead or silent.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"
#include "protocol/bootstrap.h"
#include "protocol/mailbox.h"
#include "protocol/outstanding_buffers.h"
#include "protocol/pending_recv.h"
#include "protocol/retry_queue.h"
#include "protocol/send_outcome.h"
#include "protocol/static_receiver.h"
#include "protocol/static_sender.h"
#include "protocol/step_aborts.h"
#include "protocol/tensor.h"
#include "protocol/unacked_sends.h"
#include "protocol/wire.h"

namespace rdma_transport {

// What a link works with; all outlive it.
struct LinkContext {
  fabric::Device* device;
  memory::Arena* arena;
  memory::SlotPools* slots;
  memory::Arena* receive_arena;
  const Settings* settings;
  Traffic* traffic;  // with that peer
};

class LinkOwner {
 public:
  virtual ~LinkOwner() = default;
  virtual void OnLinkUp(const std::shared_ptr<class Link>& link) = 0;
  // `was_up`: OnLinkUp() came before. Unless the code is Unavailable the peer may live, and the
  // link be InUse().
  virtual void OnLinkDown(const std::shared_ptr<class Link>& link, const Status& status,
                          bool was_up) = 0;
  // After OnLinkDown() of a peer that may live: the link is not InUse() any more.
  virtual void OnLinkReleased(const std::shared_ptr<class Link>& link) = 0;
  virtual void OnArrival(int64_t step, const KeyId& key, Arrival arrival) = 0;
  // The peer restarted the step: what came of that link for it before counts no more.
  virtual void OnRestart(class Link* link, int64_t step, uint32_t generation) = 0;
  // The peer knows that this task restarted the step: what it sent before has come.
  virtual void OnRestarted(class Link* link, int64_t step) = 0;
  virtual void OnAbort(class Link* link, StepAbort abort) = 0;
  // Tick() has something to look after.
  virtual void ArmTimer() = 0;
  // After OnLinkDown(): what may not have arrived.
  virtual void OnLost(const std::shared_ptr<class Link>& link,
                      std::vector<UnackedTensor> tensors) = 0;
};

class Link final : public fabric::ChannelHandler,
                   private LeaseMaker,
                   public std::enable_shared_from_this<Link> {
 public:
  Link(const LinkContext& context, LinkOwner* owner, Nanos deadline)
      : context_(context), owner_(owner), deadline_(deadline) {}

  Status Open();
  fabric::Channel* channel() const { return channel_.get(); }

  // The peer's name and life; set before Connect().
  void set_remote(Identity remote) { remote_ = std::move(remote); }
  const Identity& remote() const { return remote_; }
  const Traffic* traffic() const { return context_.traffic; }
  bool up() const { return up_.load(std::memory_order_acquire); }
  // When it came up: seconds since 1970.
  double since() const { return since_; }

  SendOutcome Send(Outgoing* tensor);
  // Keeps a tensor that was sent until the peer certainly has word of it; what is left when the
  // link ends goes to LinkOwner::OnLost(). `number`: of Send(). False, and `tensor` untouched: the
  // link has ended already.
  bool KeepUntilDelivered(uint64_t number, UnackedTensor* tensor) {
    Confirm();
    return unacked_.Keep(number, tensor);
  }
  // Lets go of what was kept and is there by now.
  void Confirm() { unacked_.OnDelivered(channel_->Delivered()); }
  // Tells the receiver that the tensor waits here for TensorFlow's own transport.
  void SendPull(int64_t step, std::string_view key, const std::string& reason);
  // Takes back what was sent for a step and not received yet: a new generation of it begins here.
  void SendRestart(int64_t step, uint32_t generation);
  // Whether the peer has not confirmed the last SendRestart() for the step yet.
  bool AwaitsRestarted(int64_t step) const;
  // Notifies the peer of a step that was aborted here, as soon as there is room. Also one that does
  // not answer: when it goes on, it must not wait for what was not sent to it.
  void SendAbort(const StepAbort& abort);
  // Gives a loan or a slot back to the peer: as soon as there is room for the word of it. Never
  // blocks.
  void Return(MessageType type, uint64_t value, fabric::Urgency urgency);

  StaticSender& static_edges() { return *static_sender_; }
  // Tensors that the peer may still read here.
  size_t outstanding() const { return outstanding_.size(); }
  // Whether a peer that lives may still read what it was lent, or write into its slots here. The
  // polling thread's.
  bool InUse() const { return outstanding_.size() != 0 || static_receiver_->HasReceiverSlots(); }
  // The peer reads nothing here any more.
  void ReleaseOutstanding() { outstanding_.ReleaseAll(); }

  // Reads the bytes of `arrival` into memory of this process, then completes the pending receive,
  // which the caller has claimed.
  void ReadThenDeliver(Arrival arrival, std::shared_ptr<PendingRecv> recv);

  // False when the peer is lost or silent, and then why.
  bool AddPending(const std::shared_ptr<PendingRecv>& recv, Status* reason) {
    return recvs_.Add(recv, reason);
  }

  // Says something to the peer, so that a link that is broken without knowing it ends.
  void Probe();

  // On the polling thread: looks after deadlines. True while there is something to look after.
  // `excuse`: this process itself was not running, so nobody's silence counts.
  bool Tick(Nanos now, bool excuse);

  // ChannelHandler, on the polling thread.
  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnDelivered(uint64_t number) override { unacked_.OnDelivered(number); }
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;
  void OnReleased() override { owner_->OnLinkReleased(shared_from_this()); }

 private:
  struct Reading {
    Delivery delivery;
    std::shared_ptr<PendingRecv> recv;
    OwnerRef loan;
  };

  // A notification that must not be lost, and whose order does not matter.
  void SendReliably(const iovec* parts, int count, fabric::Urgency urgency);
  void SendControlReliably(ControlMessage message, fabric::Urgency urgency);
  Status Dispatch(const char* data, size_t length);
  Status HandleTensor(const char* data, size_t length);
  Status HandleStatic(const char* data, size_t length);
  Status HandleEdge(MessageType type, const char* data, size_t length);
  Status HandleAbort(const char* data, size_t length);
  void HandleRestart(const ControlMessage& message);
  void HandleRestarted(const ControlMessage& message);
  Status TakeInline(const TensorMessage& message, Arrival* arrival);
  Status TakeDescriptor(const TensorMessage& message, Arrival* arrival);
  SendOutcome SendBest(Outgoing* tensor);
  SendOutcome SendInline(const Outgoing& tensor);
  SendOutcome SendDescriptor(Outgoing* tensor);
  char* DestinationFor(PendingRecv* recv, uint64_t bytes, OwnerRef* owner);
  OwnerRef MakeLoan(uint64_t buffer_id, std::shared_ptr<const void> mapping) override;
  OwnerRef MakeLease(MessageType type, uint64_t value, fabric::Urgency urgency,
                     std::shared_ptr<const void> memory);
  OwnerRef MakeCredit(uint64_t credit, std::shared_ptr<const void> memory) override;
  void Freeze(Nanos silence);
  void Thaw();

  const LinkContext context_;
  LinkOwner* const owner_;
  const Nanos deadline_;  // for the connection to come up
  std::shared_ptr<fabric::Channel> channel_;
  Identity remote_;
  double since_ = 0;  // before up_
  std::atomic<bool> up_{false};
  std::atomic<bool> frozen_{false};

  OutstandingBuffers outstanding_;
  std::unique_ptr<StaticSender> static_sender_;
  std::unique_ptr<StaticReceiver> static_receiver_;
  PendingRecvList recvs_;

  std::mutex readings_mu_;
  std::map<uint64_t, Reading> readings_;
  uint64_t next_cookie_ = 1;

  mutable std::mutex restarts_mu_;
  std::map<int64_t, uint32_t> restarts_;  // that the peer has not confirmed, by step

  RetryQueue retry_queue_;
  UnackedSends unacked_;

  // The polling thread's.
  bool heard_ = false;
  bool idle_ = true;
  bool pinged_ = false;
  Nanos silent_since_ = 0;
  uint64_t pings_ = 0;
};

}  // namespace rdma_transport
