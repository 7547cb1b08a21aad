// How a channel hands its messages, transfers and reads of the mark to the provider.
#include <cstring>

#include "fabric/libfabric/channel.h"

namespace rdma_transport::fabric::libfabric {

// With remote data, the peer waits for the writes before a message. Without, this side does, and
// starts all writes in the order in which they were queued. What must follow large writes is held.
bool LibfabricChannel::MayLeave(const OutgoingMessage& message) const {
  return remote_data_ ? transfers_.QuickStartedTo(message.after)
                      : transfers_.first_unfinished() > message.after;
}

// The peer must be able to tell writes apart by 16 bits of their number.
bool LibfabricChannel::MayWrite() const {
  return !remote_data_ || transfers_.started() + 1 - arrived_there_ <= kMaxUnconfirmedWrites;
}

void LibfabricChannel::Pump() {
  if (state_.load() == State::kNew || state_.load() == State::kFinished) return;
  if (!device_->domain().Usable()) return;
  while (true) {
    AddHeld();
    bool posted = true;
    if (!control_.empty()) {
      posted = PostControl();
    } else if (outbox_.Front() != nullptr && MayLeave(*outbox_.Front())) {
      posted = PostMessage();
    } else if (transfers_.FrontWrite() != nullptr && MayWrite()) {
      posted = PostPiece(*transfers_.FrontWrite());
    } else if (transfers_.FrontRead() != nullptr) {
      posted = PostPiece(*transfers_.FrontRead());
    } else if (mark_ == Mark::kDue) {
      posted = PostMark();
    } else {
      return;
    }
    if (!posted) return;
  }
}

// The header of the next message, which confirms what has come so far. Call OnSent() if it leaves.
MessageHeader LibfabricChannel::HeaderOf(MessageKind kind) const {
  MessageHeader header = {};
  header.tag = remote_.tag;
  header.confirmed = read_.load(std::memory_order_acquire);
  header.arrived = arrived_.load(std::memory_order_acquire);
  header.kind = kind;
  return header;
}

void LibfabricChannel::OnSent(const MessageHeader& header) {
  confirmed_ = {header.confirmed, header.arrived};
  if (read_.load(std::memory_order_relaxed) == header.confirmed) {
    unconfirmed_since_.store(0, std::memory_order_relaxed);
  }
}

Operation* LibfabricChannel::NewOperation(Operation::Kind kind) {
  Operation* operation = device_->NewOperation(kind);
  operation->channel = shared_from_this();
  return operation;
}

bool LibfabricChannel::PostControl() {
  const Control& control = control_.front();
  Operation* operation = NewOperation(Operation::Kind::kMessage);
  if (!device_->domain().TakeFrame(&operation->frame)) {
    device_->Return(operation);
    Attend();
    return false;
  }
  MessageHeader header = HeaderOf(control.kind);
  if (control.kind == MessageKind::kDrained && remote_data_) header.writes = transfers_.started();
  if (control.asks) {
    header.sequence = outbox_.last_posted();
    header.wants_confirmation = 1;
  }
  std::memcpy(operation->frame.data, &header, sizeof(header));
  std::memcpy(operation->frame.data + sizeof(MessageHeader), control.text.data(),
              control.text.size());
  const size_t length = sizeof(MessageHeader) + control.text.size();
  const Frame frame = operation->frame;
  const Start start =
      Started(operation, device_->domain().Send(operation, length, peer_), "a message");
  if (start != Start::kDone) {
    device_->domain().ReturnFrame(frame);
    if (start == Start::kFailed) control_.clear();  // there is no way to the peer
    return false;
  }
  control_.pop_front();
  OnSent(header);
  return true;
}

bool LibfabricChannel::PostMessage() {
  const OutgoingMessage message = *outbox_.Front();
  Operation* operation = NewOperation(Operation::Kind::kMessage);
  operation->frame = message.frame;
  MessageHeader header = HeaderOf(MessageKind::kStream);
  header.sequence = message.sequence;
  header.writes = remote_data_ ? transfers_.started() : 0;
  header.wants_confirmation =
      outbox_.WantsConfirmation() || state_.load() != State::kConnected ? 1 : 0;
  std::memcpy(message.frame.data, &header, sizeof(header));
  const ssize_t result = device_->domain().Send(operation, message.length, peer_);
  if (Started(operation, result, "a message") != Start::kDone) return false;
  outbox_.Pop();
  OnSent(header);
  return true;
}

bool LibfabricChannel::PostPiece(const Piece& piece) {
  Domain& domain = device_->domain();
  Operation* operation =
      NewOperation(piece.write ? Operation::Kind::kWrite : Operation::Kind::kRead);
  operation->transfer = piece.transfer;
  operation->sequence = piece.write ? transfers_.started() + 1 : 0;
  ssize_t result = 0;
  if (piece.write) {
    const uint32_t data = RemoteData(remote_.number, operation->sequence);
    result =
        domain.Write(operation, piece.local, piece.length, piece.descriptor, peer_, piece.address,
                     piece.key, remote_data_ ? &data : nullptr, reports_delivery_);
  } else {
    result = domain.Read(operation, piece.local, piece.length, piece.descriptor, peer_,
                         piece.address, piece.key);
  }
  if (Started(operation, result, piece.write ? "a write" : "a read") != Start::kDone) return false;
  if (!piece.write) {
    transfers_.PopRead();
    return true;
  }
  transfers_.PopWrite();
  if (device_->asleep()) WakeForWriteEnd();
  return true;
}

// A short write may already have ended, and the provider need not wake anyone for it. Waking a
// thread takes longer than such a write, so it is avoided if nothing waits for this end.
void LibfabricChannel::WakeForWriteEnd() {
  const bool others_wait = !remote_data_ || transfers_.WindowIsFull();
  if (delays_write_ends_ && !others_wait) {
    device_->WakeSoon();
  } else {
    device_->Wake();
  }
}

// Its end says that earlier operations of both sides have ended, see LingerLocked(), or that the
// peer is still there, see Probe().
bool LibfabricChannel::PostMark() {
  Operation* operation = NewOperation(Operation::Kind::kRead);
  const bool revoked = device_->domain().traits().cheap_registration;
  operation->transfer = state_.load() == State::kLingering && revoked ? kMarkOfEnd : kMarkOfLife;
  const Frame destination = device_->mark_destination();
  const ssize_t result =
      device_->domain().Read(operation, destination.data, kMarkLength, destination.descriptor,
                             peer_, remote_.mark_address, remote_.mark_key);
  const Start start = Started(operation, result, "a read");
  if (start == Start::kDone) {
    ++marks_;
    mark_ = Mark::kUnderWay;
  }
  if (start == Start::kFailed) mark_ = Mark::kRead;  // there is no way to the peer
  return start == Start::kDone;
}

LibfabricChannel::Start LibfabricChannel::Started(Operation* operation, ssize_t result,
                                                  const char* what) {
  if (result == 0) {
    ++under_way_;
    refused_since_ = 0;
    device_->OnStarted();
    return Start::kDone;
  }
  device_->Return(operation);
  if (result == -FI_EAGAIN) {
    if (refused_since_ == 0) refused_since_ = Now();
    // The polling thread must try again, and may sleep for long.
    if (!restless_.exchange(true, std::memory_order_relaxed) && device_->asleep()) device_->Wake();
    return Start::kLater;
  }
  const Status error = device_->domain().library().Error(result, what);
  PartLocked(Status(Code::kUnavailable, error.message() + " (" + route_ + ")"));
  return Start::kFailed;
}

}  // namespace rdma_transport::fabric::libfabric
