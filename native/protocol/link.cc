#include "protocol/link.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

// Sends a notification for which there is room now.
void SendIfRoom(fabric::Channel* channel, ControlMessage message,
                fabric::After after = fabric::After::Everything()) {
  const iovec part = {&message, sizeof(message)};
  channel->Notify(&part, 1, fabric::Urgency::kWake, nullptr, after).IgnoreError();
}

}  // namespace

// The end of the channel may come before this returns.
Status Link::Open() {
  std::lock_guard<std::mutex> lock(open_mu_);
  RDMA_RETURN_IF_ERROR(context_.device->Open(weak_from_this(), &channel_));
  notifier_ = std::make_shared<ReliableNotifier>(channel_, [owner = owner_] { owner->ArmTimer(); });
  dynamic_sender_ = std::make_unique<DynamicSender>(context_, channel_.get(), &outstanding_);
  dynamic_receiver_ = std::make_unique<DynamicReceiver>(context_, channel_, notifier_);
  static_sender_ =
      std::make_unique<StaticSender>(context_, channel_.get(), notifier_.get(), &outstanding_);
  static_receiver_ = std::make_unique<StaticReceiver>(context_, channel_, notifier_);
  calls_ = std::make_shared<Calls>(channel_.get(), notifier_);
  return OkStatus();
}

// --- Sending ---

SendOutcome Link::Send(Outgoing* tensor) {
  if (frozen_.load(std::memory_order_relaxed)) {
    SendOutcome outcome;
    outcome.status = Status(Code::kUnavailable, "peer " + remote().task + " does not answer");
    outcome.silent = true;
    return outcome;
  }
  if (tensor->key.size() > kMaxKeyLength || tensor->rank > kMaxRank) {
    return {OkStatus(), "a key or shape too long for a notification"};
  }
  if (!Trace::On()) return SendBest(tensor);
  const Nanos begin = Now();
  const SendOutcome outcome = SendBest(tensor);
  if (outcome.status.ok() && outcome.elsewhere == nullptr) {
    Trace::Sent(peer(), begin, tensor->step, tensor->key, tensor->bytes, outcome.mode,
                outcome.handle);
  }
  return outcome;
}

SendOutcome Link::SendBest(Outgoing* tensor) {
  if (tensor->on_device) return dynamic_sender_->SendDescriptor(tensor);
  if (tensor->bytes <= context_.settings->inline_max) return dynamic_sender_->SendInline(*tensor);
  SendOutcome outcome;
  if (!tensor->blocks_until_release && static_sender_->Send(tensor, &outcome)) return outcome;
  return dynamic_sender_->SendDescriptor(tensor);
}

void Link::SendPull(int64_t step, std::string_view key, const std::string& reason) {
  TensorHeader header = {};
  header.type = MessageType::kPull;
  header.step = step;
  const TensorFrame frame(&header, nullptr, 0, key, nullptr, 0);
  Log(LogLevel::kDebug, "pull notice: " + reason);
  notifier_->Send(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

// A lost peer needs no notification.
void Link::SendRestart(int64_t step, uint32_t generation) {
  {
    std::lock_guard<std::mutex> lock(restarts_mu_);
    restarts_[step] = generation;
  }
  ControlMessage message(MessageType::kRestart);
  message.step = step;
  message.generation = generation;
  SendIfRoom(channel_.get(), message);
}

bool Link::AwaitsRestarted(int64_t step) const {
  std::lock_guard<std::mutex> lock(restarts_mu_);
  return restarts_.count(step) != 0;
}

void Link::SendAbort(const StepAbort& abort) {
  const AbortFrame frame(abort.step, abort.generation, abort.peer_generation, abort.error);
  notifier_->Send(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

uint64_t Link::Call(CallMethod method, std::string_view request,
                    const std::shared_ptr<PendingCall>& call) {
  if (frozen_.load(std::memory_order_relaxed)) return 0;
  const uint64_t number = calls_->Start(method, request, call);
  if (number == 0) return 0;
  Status lost;
  if (!AddPending(call, &lost)) FailAll({call}, lost);
  owner_->ArmTimer();
  return number;
}

// --- Receiving ---

void Link::OnNotify(const char* data, size_t length) {
  liveness_.OnHeard();
  if (frozen_.load(std::memory_order_relaxed)) Thaw();
  const Status status = Dispatch(data, length);
  if (!status.ok()) channel_->Close(status);
}

Status Link::Dispatch(const char* data, size_t length) {
  const MessageType type = TypeOf(data, length);
  switch (type) {
    case MessageType::kInline:
    case MessageType::kDescriptor:
    case MessageType::kPull:
      return HandleTensor(data, length);
    case MessageType::kStatic:
      return HandleStatic(data, length);
    case MessageType::kEdge:
      return HandleEdge(data, length);
    case MessageType::kSlot:
      return HandleSlot(data, length);
    case MessageType::kPoolSlot:
      return HandlePoolSlot(data, length);
    case MessageType::kAbort:
      return HandleAbort(data, length);
    case MessageType::kCall:
      return HandleCall(data, length);
    case MessageType::kReply:
      return HandleReply(data, length);
    default:
      break;
  }
  ControlMessage message;
  RDMA_RETURN_IF_ERROR(ParseFixed(data, length, &message));
  return DispatchControl(message);
}

Status Link::DispatchControl(const ControlMessage& message) {
  switch (message.type) {
    case MessageType::kRelease:
      if (!outstanding_.Release(message.buffer_id)) {
        return Status(Code::kDataLoss, "the peer released a buffer that is not outstanding");
      }
      Trace::Released(peer(), message.buffer_id);
      return OkStatus();
    case MessageType::kCredit:
      Trace::Released(peer(), message.credit | Trace::kCreditBit);
      return static_sender_->receiver_slots().OnCredit(message.credit);
    case MessageType::kReadLater:
      static_sender_->OnReadLater(message.edge);
      return OkStatus();
    case MessageType::kRetire:
      static_receiver_->OnRetire(message.edge);
      return OkStatus();
    case MessageType::kRequestSlots:
      return static_receiver_->OnRequestSlots(message.pool, message.count, shared_from_this());
    case MessageType::kReturnSlot:
      return static_receiver_->OnReturnSlot(message.credit);
    case MessageType::kRestart:
      HandleRestart(message);
      return OkStatus();
    case MessageType::kRestarted:
      HandleRestarted(message);
      return OkStatus();
    case MessageType::kCancelCall:
      calls_->OnCancel(message.call);
      return OkStatus();
    case MessageType::kPing:
      // It must not wait for this task's large writes.
      SendIfRoom(channel_.get(), ControlMessage(MessageType::kPong), fabric::After::Nothing());
      return OkStatus();
    case MessageType::kPong:
      return OkStatus();
    default:
      return Status(Code::kDataLoss, "a notification of an unknown type");
  }
}

Arrival Link::NewArrival() {
  Arrival arrival;
  arrival.origin = this;
  arrival.traffic = context_.traffic;
  return arrival;
}

Status Link::HandleTensor(const char* data, size_t length) {
  const Nanos begin = Trace::On() ? Now() : 0;
  TensorMessage message;
  RDMA_RETURN_IF_ERROR(ParseTensor(data, length, &message));
  Arrival arrival = NewArrival();
  RDMA_RETURN_IF_ERROR(dynamic_receiver_->OnTensor(&message, &arrival));
  if (begin != 0 && !arrival.pull) {
    arrival.delivery.arrival =
        Trace::Arrived(peer(), begin, message.header.step, message.key, /*suffix=*/{},
                       arrival.delivery.bytes, arrival.delivery.mode);
  }
  owner_->OnArrival(message.header.step, KeyId::Of(message.key), std::move(arrival));
  return OkStatus();
}

Status Link::HandleEdge(const char* data, size_t length) {
  TensorMessage message;
  RDMA_RETURN_IF_ERROR(ParseTensor(data, length, &message));
  return static_receiver_->OnEdge(message);
}

Status Link::HandleSlot(const char* data, size_t length) {
  SlotMessage message;
  RDMA_RETURN_IF_ERROR(ParseFixed(data, length, &message));
  return static_receiver_->OnSlot(message);
}

Status Link::HandlePoolSlot(const char* data, size_t length) {
  PoolSlotMessage message;
  RDMA_RETURN_IF_ERROR(ParseFixed(data, length, &message));
  return static_sender_->receiver_slots().OnSlot(message);
}

Status Link::HandleAbort(const char* data, size_t length) {
  AbortMessage message;
  std::string_view error;
  RDMA_RETURN_IF_ERROR(ParseAbort(data, length, &message, &error));
  owner_->OnAbort(this,
                  {message.step, message.generation, message.peer_generation, std::string(error)});
  return OkStatus();
}

Status Link::HandleCall(const char* data, size_t length) {
  CallMessage message;
  std::string_view request;
  RDMA_RETURN_IF_ERROR(ParseCall(data, length, &message, &request));
  std::shared_ptr<IncomingCall> call;
  RDMA_RETURN_IF_ERROR(calls_->OnCall(message, request, &call));
  owner_->OnCall(std::move(call));
  owner_->ArmTimer();  // it must end with its caller
  return OkStatus();
}

Status Link::HandleReply(const char* data, size_t length) {
  CallMessage message;
  std::string_view error;
  RDMA_RETURN_IF_ERROR(ParseCall(data, length, &message, &error));
  return calls_->OnReply(message, error);
}

// Sent after the owner's call, so that it follows an abort that the owner may send again.
void Link::HandleRestart(const ControlMessage& message) {
  owner_->OnRestart(this, message.step, message.generation);
  ControlMessage restarted = message;
  restarted.type = MessageType::kRestarted;
  notifier_->SendControl(restarted, fabric::Urgency::kWake);
}

void Link::HandleRestarted(const ControlMessage& message) {
  {
    std::lock_guard<std::mutex> lock(restarts_mu_);
    const auto found = restarts_.find(message.step);
    if (found == restarts_.end() || found->second != message.generation) return;
    restarts_.erase(found);
  }
  owner_->OnRestarted(this, message.step);
}

Status Link::HandleStatic(const char* data, size_t length) {
  const Nanos begin = Trace::On() ? Now() : 0;
  StaticMessage message;
  std::string_view suffix;
  uint32_t checksum = 0;
  RDMA_RETURN_IF_ERROR(ParseStatic(data, length, &message, &suffix, &checksum));
  Arrival arrival = NewArrival();
  arrival.delivery.checked = (message.flags & kChecked) != 0;
  arrival.delivery.checksum = checksum;
  KeyId key;
  RDMA_RETURN_IF_ERROR(static_receiver_->OnStatic(message, suffix, &arrival, &key));
  if (begin != 0) {
    arrival.delivery.arrival = Trace::Arrived(
        peer(), begin, message.step, static_receiver_->NameOf(message.edge),
        suffix.empty() ? kUsualSuffix : suffix, arrival.delivery.bytes, Mode::kStatic);
  }
  owner_->OnArrival(message.step, key, std::move(arrival));
  return OkStatus();
}

void Link::OnTransfer(uint64_t cookie, const Status& status) {
  if ((cookie & ReceiverSlots::kCookieBit) == 0) return dynamic_receiver_->OnRead(cookie, status);
  static_sender_->receiver_slots().OnWritten(cookie, status);
  // Its notification is no longer valid.
  if (!status.ok()) channel_->Close(status);
}

// --- Life and death ---

void Link::Describe(PeerStats* stats) const {
  stats->linked = true;
  stats->linked_at = since_;
  stats->transport = channel_->fabric();
  stats->reason = channel_->Route();
  stats->incarnation = remote().incarnation;
  stats->outstanding = outstanding_.size();
  stats->backlog = channel_->backlog();
}

void Link::Probe() { SendIfRoom(channel_.get(), ControlMessage(MessageType::kPing)); }

void Link::OnConnected() {
  liveness_.OnHeard();
  since_ =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  up_.store(true, std::memory_order_release);
  owner_->OnLinkUp(shared_from_this());
}

void Link::OnClosed(const Status& status) {
  const std::shared_ptr<Link> self = shared_from_this();
  {
    std::lock_guard<std::mutex> lock(open_mu_);
    if (calls_ == nullptr) return;  // it was not opened
  }
  const bool was_up = up_.exchange(false);
  // A peer that ends while nothing waits for it, as after a job, is not reported as a failure.
  const Status lost(Code::kUnavailable, "peer " + remote().task +
                                            (AwaitsPeer() ? " is lost: " : " has disconnected: ") +
                                            status.message());
  FailAll(recvs_.TakeAll(lost), lost);
  calls_->End();
  dynamic_receiver_->Abandon(lost);
  static_sender_->Abandon();
  static_receiver_->Abandon();
  // A peer that is alive may still read outstanding buffers, so they are kept.
  if (status.code() == Code::kUnavailable) outstanding_.ReleaseAll();
  owner_->OnLinkDown(self, Status(status.code(), lost.message()), was_up);
  std::vector<UnackedTensor> lost_ones = unacked_.TakeAll();
  if (!lost_ones.empty()) owner_->OnLost(self, std::move(lost_ones));
}

bool Link::Tick(Nanos now, bool excuse) {
  if (!up()) {
    if (now > deadline_) {
      channel_->Close(Status(Code::kDeadlineExceeded, "the connection did not come up in time"));
      return false;
    }
    return true;
  }
  static_sender_->Tick(now);
  const bool queued = !notifier_->SendQueued();
  if (!AwaitsPeer()) {
    liveness_.OnIdle();
    return queued;
  }
  switch (liveness_.Check(now, context_.settings->peer_timeout, excuse)) {
    case Liveness::Verdict::kFine:
      break;
    case Liveness::Verdict::kPing:
      // Its answer also ends a silence, so it must not be lost.
      notifier_->SendControl(ControlMessage(MessageType::kPing), fabric::Urgency::kWake,
                             fabric::After::Nothing());
      break;
    case Liveness::Verdict::kSilent:
      Freeze(liveness_.Silence(now));
      break;
  }
  return true;
}

bool Link::AwaitsPeer() const {
  return recvs_.size() != 0 || calls_->Running() || dynamic_receiver_->WaitsForPeer();
}

// Called at every tick while something waits for the silent peer.
void Link::Freeze(Nanos silence) {
  const bool known = frozen_.exchange(true);
  const Status status(Code::kUnavailable,
                      "peer " + remote().task + " has not answered for " +
                          std::to_string(silence / kMillisecond) +
                          " ms: it is stopped, or its host is (RDMA_TRANSPORT_PEER_TIMEOUT)");
  if (!known) {
    Log(LogLevel::kWarning, status.message());
    GlobalCounters().errors.Add("peer_silent");
  }
  FailAll(recvs_.TakeAll(status), status);
  dynamic_receiver_->GiveUp(status);
}

void Link::Thaw() {
  frozen_.store(false);
  recvs_.Reopen();
  Log(LogLevel::kInfo, "peer " + remote().task + " answers again");
}

}  // namespace rdma_transport
