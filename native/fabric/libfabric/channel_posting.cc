// How a channel takes notifications, and hands messages, transfers and reads of the mark to the
// provider.
#include <cstring>

#include "fabric/libfabric/channel.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// Of lazy notifications, if the polling thread neither sleeps nor sends others to the peer.
constexpr Nanos kLongestDelay = 500 * kMicrosecond;

}  // namespace

Status LibfabricChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                                After /*after*/) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Connected()) return NotConnected();
  RDMA_RETURN_IF_ERROR(
      AddRecord(RecordKind::kNotification, parts, count, notified_ + 1, urgency == Urgency::kWake));
  ++notified_;
  if (number != nullptr) *number = notified_;
  return OkStatus();
}

// A record that is not sent now goes with the next one that is: an answer to what the peer sent
// often follows at once. A message of its own would cost both sides a system call and wake the
// peer. The polling thread sends it before it sleeps, or when it has waited for long.
Status LibfabricChannel::AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number,
                                   bool now) {
  RDMA_RETURN_IF_ERROR(outbox_.Add(kind, parts, count, number, transfers_.begun()));
  if (now || endpoint_->asleep()) {
    outbox_.Close();
    Pump();
  } else if (outbox_.Front() != nullptr) {
    Attend();  // the record did not fit into it
  }
  if (outbox_.HasOpen()) DueBy(Now() + kLongestDelay);
  return OkStatus();
}

void LibfabricChannel::DueBy(Nanos time) {
  if (due() == 0 || due() > time) due_.store(time, std::memory_order_relaxed);
}

void LibfabricChannel::SendIfDue(Nanos now) {
  if (due() == 0 || due() > now) return;
  std::lock_guard<std::mutex> lock(mu_);
  due_.store(0, std::memory_order_relaxed);
  if (!Serving(state_.load())) return;
  outbox_.Close();
  Pump();
  Confirm();
}

Status LibfabricChannel::Flush() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load()) || !endpoint_->domain().Usable()) return NotConnected();
  outbox_.Close();
  Pump();
  return OkStatus();
}

Backlog LibfabricChannel::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  return outbox_.backlog();
}

// With remote data, the peer waits for the writes before a message. Without, this side does.
bool LibfabricChannel::MessageMayLeave() const {
  const Outbox::Message* next = outbox_.Front();
  return next != nullptr &&
         next->writes < (remote_data_ ? transfers_.started() + 1 : transfers_.first_unfinished());
}

// The peer must be able to tell writes apart by 16 bits of their number.
bool LibfabricChannel::MayWrite() const {
  return !remote_data_ || transfers_.started() + 1 - arrived_there_ <= kMaxUnconfirmedWrites;
}

void LibfabricChannel::Pump() {
  if (state_.load() == State::kNew || state_.load() == State::kFinished) return;
  if (!endpoint_->domain().Usable()) return;
  while (true) {
    bool posted = true;
    if (confirm_due_ || end_due_) {
      posted = PostControl();
    } else if (MessageMayLeave()) {
      posted = PostMessage();
    } else if (transfers_.FrontWrite() != nullptr && MayWrite()) {
      posted = PostTransfer(/*write=*/true);
    } else if (transfers_.FrontRead() != nullptr) {
      posted = PostTransfer(/*write=*/false);
    } else if (mark_ == Mark::kDue) {
      posted = PostMark();
    } else {
      return;
    }
    if (!posted) return;
  }
}

// The header of the next message, which confirms what has come so far.
MessageHeader LibfabricChannel::HeaderOf(MessageKind kind) const {
  MessageHeader header = {};
  header.tag = remote_.tag;
  header.channel = remote_.number;
  header.confirmed = read_.load(std::memory_order_acquire);
  header.arrived = arrived_.load(std::memory_order_acquire);
  header.kind = kind;
  return header;
}

Operation* LibfabricChannel::NewOperation(Kind kind) {
  Operation* operation = endpoint_->NewOperation(kind);
  if (operation != nullptr) operation->channel = shared_from_this();
  return operation;
}

// Sends a message. If it cannot leave now, Service() tries again.
LibfabricChannel::Start LibfabricChannel::Send(const MessageHeader& header, std::string_view body) {
  Operation* operation = NewOperation(Kind::kMessage);
  if (operation == nullptr) {
    Attend();
    return Start::kLater;
  }
  std::memcpy(operation->frame.data, &header, sizeof(header));
  std::memcpy(operation->frame.data + sizeof(header), body.data(), body.size());
  const size_t length = sizeof(header) + body.size();
  const Start start =
      Started(operation, length, endpoint_->domain().Send(operation, length, peer_), "a message");
  if (start != Start::kDone) return start;
  confirmed_ = {header.confirmed, header.arrived};
  if (read_.load(std::memory_order_relaxed) == header.confirmed && !outbox_.HasOpen()) {
    due_.store(0, std::memory_order_relaxed);
  }
  return start;
}

bool LibfabricChannel::PostControl() {
  MessageHeader header = HeaderOf(MessageKind::kConfirm);
  std::string reason;
  if (end_due_) {
    header.kind = told_drained_ ? MessageKind::kDrained : MessageKind::kGone;
    if (told_drained_ && remote_data_) header.writes = transfers_.started();
    reason = close_reason_.message().substr(0, kMaxReason);
  } else if (asks_) {
    header.sequence = outbox_.last_posted();
    header.wants_confirmation = 1;
  }
  const Start start = Send(header, reason);
  if (start == Start::kLater) return false;
  confirm_due_ = asks_ = end_due_ = false;  // if it failed, there is no way to the peer
  return start == Start::kDone;
}

bool LibfabricChannel::PostMessage() {
  MessageHeader header = HeaderOf(MessageKind::kStream);
  header.sequence = outbox_.last_posted() + 1;
  header.writes = remote_data_ ? transfers_.started() : 0;
  header.wants_confirmation =
      outbox_.WantsConfirmation() || state_.load() != State::kConnected ? 1 : 0;
  if (Send(header, outbox_.Front()->records) != Start::kDone) return false;
  outbox_.Pop();
  return true;
}

bool LibfabricChannel::PostTransfer(bool write) {
  Operation* operation = NewOperation(write ? Kind::kWrite : Kind::kRead);
  const Transfers::Waiting& next = write ? *transfers_.FrontWrite() : *transfers_.FrontRead();
  const uint64_t length = next.length;
  operation->cookie = next.cookie;
  operation->sequence = write ? transfers_.started() + 1 : 0;
  Domain& domain = endpoint_->domain();
  ssize_t result = 0;
  if (write) {
    const uint32_t data = RemoteData(remote_.number, operation->sequence);
    result =
        domain.Write(operation, next.local, length, next.descriptor, peer_, next.address, next.key,
                     remote_data_ ? &data : nullptr, write_end_ == WriteEnd::kDelivered);
  } else {
    result =
        domain.Read(operation, next.local, length, next.descriptor, peer_, next.address, next.key);
  }
  if (Started(operation, length, result, write ? "a write" : "a read") != Start::kDone) {
    return false;
  }
  if (!write) {
    transfers_.PopRead();
    return true;
  }
  transfers_.PopWrite();
  if (endpoint_->asleep()) WakeForWriteEnd(length);
  return true;
}

// A short write may already have ended, and the provider need not wake anyone for it. Waking a
// thread takes longer than such a write, so it is avoided if nothing waits for this end, as the
// next piece of a large write does.
void LibfabricChannel::WakeForWriteEnd(uint64_t length) {
  if (write_end_ == WriteEnd::kLate && remote_data_ && length < endpoint_->pace().piece) {
    endpoint_->WakeSoon();
  } else {
    endpoint_->sleeper().Wake();
  }
}

// Its end says that earlier operations of both sides have ended, see LingerLocked(), or that the
// peer is still there, see Probe().
bool LibfabricChannel::PostMark() {
  const bool withdrawn = endpoint_->domain().traits().cheap_registration;
  const bool last = state_.load() == State::kLingering && withdrawn;
  Operation* operation = NewOperation(last ? Kind::kLastMark : Kind::kMark);
  const Frame destination = endpoint_->mark_destination();
  const ssize_t result =
      endpoint_->domain().Read(operation, destination.data, kMarkLength, destination.descriptor,
                               peer_, remote_.mark_address, remote_.mark_key);
  const Start start = Started(operation, kMarkLength, result, "a read");
  if (start == Start::kDone) {
    ++marks_;
    mark_ = Mark::kUnderWay;
  }
  if (start == Start::kFailed) mark_ = Mark::kRead;  // there is no way to the peer
  return start == Start::kDone;
}

LibfabricChannel::Start LibfabricChannel::Started(Operation* operation, uint64_t length,
                                                  ssize_t result, const char* what) {
  if (result == 0) {
    ++under_way_;
    refused_since_ = 0;
    endpoint_->OnStarted(operation->kind, length);
    return Start::kDone;
  }
  endpoint_->Return(operation);
  if (result == -FI_EAGAIN) {
    if (refused_since_ == 0) refused_since_ = Now();
    // The polling thread must try again, and may sleep for long.
    if (!restless_.exchange(true, std::memory_order_relaxed) && endpoint_->asleep())
      endpoint_->sleeper().Wake();
    return Start::kLater;
  }
  const Status error = endpoint_->domain().library().Error(result, what);
  PartLocked(Status(Code::kUnavailable, error.message() + " (" + route_ + ")"));
  return Start::kFailed;
}

}  // namespace rdma_transport::fabric::libfabric
