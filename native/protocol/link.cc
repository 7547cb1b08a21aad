#include "protocol/link.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/log.h"
#include "protocol/control.h"
#include "protocol/integrity.h"
#include "protocol/map_receiver_owned.h"
#include "protocol/staging.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

// A tensor's reference to a peer's memory or slot; dropping it notifies the peer.
struct Lease {
  std::shared_ptr<Link> link;
  MessageType type;
  uint64_t value;
  fabric::Urgency urgency;
  std::shared_ptr<const void> memory;
  ~Lease() { link->Return(type, value, urgency); }
  static void Delete(void* lease) { delete static_cast<Lease*>(lease); }
};

TensorHeader HeaderOf(const Outgoing& tensor, MessageType type) {
  TensorHeader header = {};
  header.type = type;
  header.flags = tensor.dead ? kDead : 0;
  header.dtype = tensor.dtype;
  header.step = tensor.step;
  header.bytes = tensor.bytes;
  return header;
}

// TensorFlow aborts the process if a tensor is not aligned like this.
constexpr uint64_t kTensorAlignment = 64;

// Memory for received bytes, which no fabric needs to reach.
char* AllocateAnywhere(uint64_t bytes, OwnerRef* owner) {
  void* memory =
      std::aligned_alloc(kTensorAlignment, (bytes / kTensorAlignment + 1) * kTensorAlignment);
  if (memory != nullptr) *owner = OwnerRef(memory, &std::free);
  return static_cast<char*>(memory);
}

}  // namespace

Status Link::Open() {
  RDMA_RETURN_IF_ERROR(context_.device->Open(weak_from_this(), &channel_));
  static_sender_ = std::make_unique<StaticSender>(
      StaticSender::Context{context_.device, context_.arena, context_.slots, context_.settings,
                            context_.traffic,
                            [this](MessageType type, uint64_t value) {
                              Return(type, value, fabric::Urgency::kLazy);
                            }},
      channel_.get(), &outstanding_);
  static_receiver_ = std::make_unique<StaticReceiver>(
      StaticReceiver::Context{context_.device, context_.receive_arena, context_.settings}, channel_,
      static_cast<LeaseMaker*>(this));
  return OkStatus();
}

// --- Sending ---

SendOutcome Link::Send(Outgoing* tensor) {
  if (frozen_.load(std::memory_order_relaxed)) {
    SendOutcome outcome;
    outcome.status = Status(Code::kUnavailable, "peer " + remote_.task + " does not answer");
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
    Trace::Sent(*context_.traffic, begin, tensor->step, tensor->key, tensor->bytes, outcome.mode,
                outcome.handle);
  }
  return outcome;
}

SendOutcome Link::SendBest(Outgoing* tensor) {
  if (tensor->bytes <= context_.settings->inline_max) return SendInline(*tensor);
  SendOutcome outcome;
  if (!tensor->blocks_until_release && static_sender_->Send(tensor, &outcome)) return outcome;
  return SendDescriptor(tensor);
}

SendOutcome Link::SendInline(const Outgoing& tensor) {
  TensorHeader header = HeaderOf(tensor, MessageType::kInline);
  const char* data = tensor.data;
  std::string copy;
  if (context_.settings->checksum && tensor.bytes > 0) {
    // The checksum must match what is sent.
    if (tensor.mutable_source) data = copy.assign(tensor.data, tensor.bytes).data();
    header.flags |= kChecked;
    header.checksum = ChecksumOf(data, tensor.bytes);
  }
  const TensorFrame frame(&header, tensor.dims, tensor.rank, tensor.key, data, tensor.bytes);
  // Counted first, because statistics may be read as soon as it is sent.
  context_.traffic->Sent(Mode::kInline).Add(tensor.bytes);
  GlobalCounters().inline_copied_bytes.fetch_add(tensor.bytes, std::memory_order_relaxed);
  SendOutcome outcome;
  outcome.status =
      channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake, &outcome.number);
  return outcome;
}

SendOutcome Link::SendDescriptor(Outgoing* tensor) {
  TensorHeader header = HeaderOf(*tensor, MessageType::kDescriptor);
  if (tensor->blocks_until_release) header.flags |= kBlocksUntilRelease;
  fabric::RemoteSpan span;
  if (!tensor->mutable_source && channel_->Owns(tensor->data, &span)) {
    header.flags |= kReceiverOwned;
  } else if (tensor->mutable_source || !channel_->Locate(tensor->data, &span) ||
             span.length < tensor->bytes) {
    if (!Stage(context_.arena, context_.slots, /*site=*/{}, tensor))
      return {OkStatus(), "no memory in the arena for a copy"};
    if (!channel_->Locate(tensor->data, &span)) {
      return {Status(Code::kInternal, "a staged tensor outside the arena")};
    }
  }
  header.region_key = span.key;
  header.region_offset = span.offset;
  if ((header.flags & kReceiverOwned) == 0) {
    const Status shared = channel_->Share(span.key);
    if (shared.code() == Code::kResourceExhausted) {
      Log(LogLevel::kWarning, shared.message());
      return {OkStatus(), "its memory cannot be registered with the fabric"};
    }
    if (!shared.ok()) return {shared};
  }
  if (context_.settings->checksum) {
    header.flags |= kChecked;
    header.checksum = ChecksumOf(tensor->data, tensor->bytes);
  }
  header.buffer_id = outstanding_.Add(std::move(tensor->owner));
  const TensorFrame frame(&header, tensor->dims, tensor->rank, tensor->key, nullptr, 0);
  context_.traffic->Sent(Mode::kDynamic).Add(tensor->bytes);
  SendOutcome outcome;
  outcome.mode = Mode::kDynamic;
  outcome.handle = header.buffer_id;
  outcome.status =
      channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake, &outcome.number);
  if (!outcome.status.ok()) outstanding_.Release(header.buffer_id);
  return outcome;
}

void Link::SendPull(int64_t step, std::string_view key, const std::string& reason) {
  TensorHeader header = {};
  header.type = MessageType::kPull;
  header.step = step;
  const TensorFrame frame(&header, nullptr, 0, key, nullptr, 0);
  Log(LogLevel::kDebug, "pull notice: " + reason);
  SendReliably(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

// A lost peer needs no notification. If the notification finds no room, later ones must not arrive
// either, so the channel is closed.
void Link::SendRestart(int64_t step, uint32_t generation) {
  {
    std::lock_guard<std::mutex> lock(restarts_mu_);
    restarts_[step] = generation;
  }
  const Status sent =
      NotifyControl(channel_.get(), MessageType::kForget, static_cast<uint64_t>(step),
                    fabric::Urgency::kWake, generation);
  if (sent.code() == Code::kResourceExhausted) channel_->Close(sent);
}

bool Link::AwaitsRestarted(int64_t step) const {
  std::lock_guard<std::mutex> lock(restarts_mu_);
  return restarts_.count(step) != 0;
}

void Link::SendAbort(const StepAbort& abort) {
  const AbortFrame frame(abort.step, abort.generation, abort.peer_generation, abort.error);
  SendReliably(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

void Link::Return(MessageType type, uint64_t value, fabric::Urgency urgency) {
  SendControlReliably(ControlOf(type, value), urgency);
}

void Link::SendControlReliably(ControlMessage message, fabric::Urgency urgency) {
  const iovec part = {&message, sizeof(message)};
  SendReliably(&part, 1, urgency);
}

void Link::SendReliably(const iovec* parts, int count, fabric::Urgency urgency) {
  if (!retry_queue_.Send(channel_.get(), parts, count, urgency)) owner_->ArmTimer();
}

// --- Receiving ---

void Link::OnNotify(const char* data, size_t length) {
  heard_ = true;
  if (frozen_.load(std::memory_order_relaxed)) Thaw();
  const Status status = Dispatch(data, length);
  if (!status.ok()) channel_->Close(status);
}

Status Link::Dispatch(const char* data, size_t length) {
  const MessageType type = TypeOf(data, length);
  if (type == MessageType::kInline || type == MessageType::kDescriptor ||
      type == MessageType::kPull) {
    return HandleTensor(data, length);
  }
  if (type == MessageType::kStatic) return HandleStatic(data, length);
  if (type == MessageType::kEdge || type == MessageType::kSlot) {
    return HandleEdge(type, data, length);
  }
  if (type == MessageType::kAbort) return HandleAbort(data, length);
  ControlMessage message;
  RDMA_RETURN_IF_ERROR(ParseControl(data, length, &message));
  switch (type) {
    case MessageType::kRelease:
      if (!outstanding_.Release(message.value)) {
        return Status(Code::kDataLoss, "the peer released a buffer that is not outstanding");
      }
      Trace::Released(*context_.traffic, message.value);
      return OkStatus();
    case MessageType::kCredit:
      Trace::Released(*context_.traffic, message.value | Trace::kCreditBit);
      return static_sender_->OnCredit(message.value);
    case MessageType::kRetire:
      static_receiver_->OnRetire(message.value);
      return OkStatus();
    case MessageType::kForget:
      HandleRestart(message);
      return OkStatus();
    case MessageType::kRestarted:
      HandleRestarted(message);
      return OkStatus();
    case MessageType::kPing:
      // If there is no room, other notifications prove that this task is alive.
      NotifyControl(channel_.get(), MessageType::kPong, message.value, fabric::Urgency::kWake)
          .IgnoreError();
      return OkStatus();
    case MessageType::kPong:
      return OkStatus();
    default:
      return Status(Code::kDataLoss, "a notification of an unknown type");
  }
}

Status Link::HandleTensor(const char* data, size_t length) {
  const Nanos begin = Trace::On() ? Now() : 0;
  TensorMessage message;
  RDMA_RETURN_IF_ERROR(ParseTensor(data, length, &message));
  Arrival arrival;
  arrival.origin = this;
  arrival.traffic = context_.traffic;
  Delivery& delivery = arrival.delivery;
  delivery.dtype = message.header.dtype;
  delivery.dead = (message.header.flags & kDead) != 0;
  delivery.bytes = message.header.bytes;
  delivery.checked = (message.header.flags & kChecked) != 0;
  delivery.checksum = message.header.checksum;
  if (message.header.type == MessageType::kInline) {
    RDMA_RETURN_IF_ERROR(TakeInline(message, &arrival));
  } else if (message.header.type == MessageType::kDescriptor) {
    RDMA_RETURN_IF_ERROR(TakeDescriptor(message, &arrival));
  } else {
    arrival.pull = true;
    arrival.reason = "the sender cannot send it by the fabric";
  }
  delivery.dims = std::move(message.dims);
  if (begin != 0 && !arrival.pull) {
    delivery.arrival = Trace::Arrived(*context_.traffic, begin, message.header.step, message.key,
                                      /*tail=*/{}, delivery.bytes, delivery.mode);
  }
  owner_->OnArrival(message.header.step, KeyId::Of(message.key), std::move(arrival));
  return OkStatus();
}

Status Link::HandleEdge(MessageType type, const char* data, size_t length) {
  if (type == MessageType::kEdge) {
    TensorMessage message;
    RDMA_RETURN_IF_ERROR(ParseTensor(data, length, &message));
    return static_receiver_->OnEdge(message);
  }
  SlotMessage message;
  RDMA_RETURN_IF_ERROR(ParseSlot(data, length, &message));
  return (message.flags & kReceiver) != 0 ? static_sender_->OnSlot(message)
                                          : static_receiver_->OnSlot(message);
}

Status Link::HandleAbort(const char* data, size_t length) {
  AbortMessage message;
  std::string_view error;
  RDMA_RETURN_IF_ERROR(ParseAbort(data, length, &message, &error));
  owner_->OnAbort(this,
                  {message.step, message.generation, message.peer_generation, std::string(error)});
  return OkStatus();
}

// Sent after the owner's call, so that it follows an abort that the owner may send again.
void Link::HandleRestart(const ControlMessage& message) {
  owner_->OnRestart(this, static_cast<int64_t>(message.value), message.generation);
  SendControlReliably(ControlOf(MessageType::kRestarted, message.value, message.generation),
                      fabric::Urgency::kWake);
}

void Link::HandleRestarted(const ControlMessage& message) {
  const auto step = static_cast<int64_t>(message.value);
  {
    std::lock_guard<std::mutex> lock(restarts_mu_);
    const auto found = restarts_.find(step);
    if (found == restarts_.end() || found->second != message.generation) return;
    restarts_.erase(found);
  }
  owner_->OnRestarted(this, step);
}

Status Link::HandleStatic(const char* data, size_t length) {
  const Nanos begin = Trace::On() ? Now() : 0;
  StaticMessage message;
  std::string_view tail;
  uint32_t checksum = 0;
  RDMA_RETURN_IF_ERROR(ParseStatic(data, length, &message, &tail, &checksum));
  Arrival arrival;
  arrival.origin = this;
  arrival.traffic = context_.traffic;
  arrival.delivery.checked = (message.flags & kChecked) != 0;
  arrival.delivery.checksum = checksum;
  KeyId key;
  RDMA_RETURN_IF_ERROR(static_receiver_->OnStatic(message, tail, &arrival, &key));
  if (begin != 0) {
    arrival.delivery.arrival = Trace::Arrived(
        *context_.traffic, begin, message.step, static_receiver_->NameOf(message.edge),
        tail.empty() ? kUsualTail : tail, arrival.delivery.bytes, Mode::kStatic);
  }
  owner_->OnArrival(message.step, key, std::move(arrival));
  return OkStatus();
}

Status Link::TakeInline(const TensorMessage& message, Arrival* arrival) {
  Delivery& delivery = arrival->delivery;
  delivery.mode = Mode::kInline;
  delivery.exclusive = true;
  if (delivery.bytes == 0) return OkStatus();
  char* copy = AllocateAnywhere(delivery.bytes, &delivery.lease);
  if (copy == nullptr) return Status(Code::kResourceExhausted, "no memory for a small tensor");
  std::memcpy(copy, message.payload, delivery.bytes);
  delivery.data = copy;
  GlobalCounters().inline_copied_bytes.fetch_add(delivery.bytes, std::memory_order_relaxed);
  return OkStatus();
}

OwnerRef Link::MakeLease(MessageType type, uint64_t value, fabric::Urgency urgency,
                         std::shared_ptr<const void> memory) {
  return OwnerRef(new Lease{shared_from_this(), type, value, urgency, std::move(memory)},
                  &Lease::Delete);
}

// A release is lazy: the buffer only holds memory.
OwnerRef Link::MakeLoan(uint64_t buffer_id, std::shared_ptr<const void> mapping) {
  return MakeLease(MessageType::kRelease, buffer_id, fabric::Urgency::kLazy, std::move(mapping));
}

// A credit is urgent: the sender may have no other slot.
OwnerRef Link::MakeCredit(uint64_t credit, std::shared_ptr<const void> memory) {
  return MakeLease(MessageType::kCredit, credit, fabric::Urgency::kWake, std::move(memory));
}

Status Link::TakeDescriptor(const TensorMessage& message, Arrival* arrival) {
  const TensorHeader& header = message.header;
  Delivery& delivery = arrival->delivery;
  delivery.mode = Mode::kDynamic;
  const fabric::RemoteSpan span = {header.region_key, header.region_offset, header.bytes};
  const bool home = (header.flags & kReceiverOwned) != 0;
  const bool blocks_until_release = (header.flags & kBlocksUntilRelease) != 0;
  const fabric::Urgency urgency =
      blocks_until_release ? fabric::Urgency::kWake : fabric::Urgency::kLazy;
  const bool aligned = header.region_offset % kTensorAlignment == 0;
  if (!home && (!context_.settings->zero_copy || !channel_->MapsPeer() || !aligned)) {
    arrival->channel = channel_;
    arrival->source = span;
    // The region must be mapped before the read, and only this thread may do it.
    channel_->Map(span);
    delivery.lease = MakeLease(MessageType::kRelease, header.buffer_id, urgency, nullptr);
    return OkStatus();
  }
  fabric::MappedSpan mapped =
      home ? MapReceiverOwned(context_.device, *channel_, span) : channel_->Map(span);
  if (mapped.data == nullptr ||
      (!blocks_until_release && reinterpret_cast<uintptr_t>(mapped.data) % kTensorAlignment != 0)) {
    delivery.status = Status(Code::kResourceExhausted,
                             "a tensor of peer " + remote_.task +
                                 " cannot be mapped here (limits on memory or open files?)");
    Return(MessageType::kRelease, header.buffer_id, urgency);
    return OkStatus();
  }
  delivery.data = mapped.data;
  delivery.lease =
      MakeLease(MessageType::kRelease, header.buffer_id, urgency, std::move(mapped.holder));
  return OkStatus();
}

// Returns memory that the channel can read into: the pending receive's own, if possible.
char* Link::DestinationFor(PendingRecv* recv, uint64_t bytes, OwnerRef* owner) {
  char* wanted = recv->Destination(bytes);
  if (wanted != nullptr && (channel_->Copies() || context_.arena->Contains(wanted))) return wanted;
  if (channel_->Copies()) return AllocateAnywhere(bytes, owner);
  char* memory = context_.arena->Allocate(bytes);
  if (memory == nullptr) return nullptr;
  struct Block {
    memory::Arena* arena;
    char* address;
    ~Block() { arena->Free(address); }
  };
  *owner = OwnerRef(new Block{context_.arena, memory},
                    [](void* held) { delete static_cast<Block*>(held); });
  return memory;
}

void Link::ReadThenDeliver(Arrival arrival, std::shared_ptr<PendingRecv> recv) {
  Delivery delivery = std::move(arrival.delivery);
  OwnerRef memory;
  char* destination = DestinationFor(recv.get(), delivery.bytes, &memory);
  uint64_t cookie = 0;
  if (destination != nullptr) {
    std::lock_guard<std::mutex> lock(readings_mu_);
    cookie = next_cookie_++;
    Reading& reading = readings_[cookie];
    reading.loan = std::move(delivery.lease);
    delivery.lease = std::move(memory);
    delivery.data = destination;
    delivery.exclusive = true;
    reading.delivery = std::move(delivery);
    reading.recv = recv;
  } else {
    delivery.status =
        Status(Code::kResourceExhausted,
               "no memory in the arena for a received tensor of " + std::to_string(delivery.bytes) +
                   " bytes (RDMA_TRANSPORT_ARENA_SIZE, limits on locked memory?)");
    recv->OnDelivery(std::move(delivery));
    return;
  }
  const Status started = channel_->Read(arrival.source, destination, cookie);
  if (!started.ok()) OnTransfer(cookie, started);
}

void Link::OnTransfer(uint64_t cookie, const Status& status) {
  if ((cookie & StaticSender::kCookieBit) != 0) {
    static_sender_->OnWritten(cookie);
    // Its notification is no longer valid.
    if (!status.ok()) channel_->Close(status);
    return;
  }
  Reading reading;
  {
    std::lock_guard<std::mutex> lock(readings_mu_);
    const auto found = readings_.find(cookie);
    if (found == readings_.end()) return;
    reading = std::move(found->second);
    readings_.erase(found);
  }
  reading.delivery.status = status;
  if (status.ok() && channel_->Copies()) {
    GlobalCounters().copied_bytes.fetch_add(reading.delivery.bytes, std::memory_order_relaxed);
  }
  Trace::HandedOver(reading.delivery.arrival);
  Verify(remote_.task, &reading.delivery);
  reading.recv->OnDelivery(std::move(reading.delivery));
}

// --- Life and death ---

void Link::Describe(PeerStats* stats) const {
  stats->linked = true;
  stats->linked_at = since_;
  stats->transport = channel_->fabric();
  stats->reason = channel_->Route();
  stats->incarnation = remote_.incarnation;
  stats->outstanding = outstanding_.size();
  stats->backlog = channel_->backlog();
}

void Link::Probe() {
  NotifyControl(channel_.get(), MessageType::kPing, 0, fabric::Urgency::kWake).IgnoreError();
}

void Link::OnConnected() {
  heard_ = true;
  since_ =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  up_.store(true, std::memory_order_release);
  owner_->OnLinkUp(shared_from_this());
}

void Link::OnClosed(const Status& status) {
  const std::shared_ptr<Link> self = shared_from_this();
  const bool was_up = up_.exchange(false);
  const Status lost(Code::kUnavailable, "peer " + remote_.task + " is lost: " + status.message());
  FailAll(recvs_.TakeAll(lost), lost);
  std::map<uint64_t, Reading> readings;
  {
    std::lock_guard<std::mutex> lock(readings_mu_);
    readings.swap(readings_);
  }
  for (auto& [cookie, reading] : readings) {
    reading.delivery.status = lost;
    reading.recv->OnDelivery(std::move(reading.delivery));
  }
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
  const bool owes = !retry_queue_.SendSome(channel_.get());
  if (recvs_.size() == 0) {
    idle_ = true;
    return owes;
  }
  if (idle_ || heard_ || excuse) {
    idle_ = heard_ = pinged_ = false;
    silent_since_ = now;
    return true;
  }
  const Nanos timeout = context_.settings->peer_timeout;
  const Nanos silence = now - silent_since_;
  if (!pinged_ && silence >= timeout / 8) {
    pinged_ = true;
    NotifyControl(channel_.get(), MessageType::kPing, ++pings_, fabric::Urgency::kWake)
        .IgnoreError();
  }
  if (silence >= timeout) Freeze(silence);
  return true;
}

void Link::Freeze(Nanos silence) {
  frozen_.store(true);
  const Status status(Code::kUnavailable,
                      "peer " + remote_.task + " has not answered for " +
                          std::to_string(silence / kMillisecond) +
                          " ms: it is stopped, or its host is (RDMA_TRANSPORT_PEER_TIMEOUT)");
  Log(LogLevel::kWarning, status.message());
  GlobalCounters().errors.Add("peer_silent");
  FailAll(recvs_.TakeAll(status), status);
}

void Link::Thaw() {
  frozen_.store(false);
  recvs_.Reopen();
  Log(LogLevel::kInfo, "peer " + remote_.task + " answers again");
}

}  // namespace rdma_transport
