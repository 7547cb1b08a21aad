// How a channel takes notifications: into the outbox, or to those that wait for large writes.
#include <utility>

#include "base/parts.h"
#include "fabric/libfabric/channel.h"

namespace rdma_transport::fabric::libfabric {

Status LibfabricChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                                After after) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Connected()) return NotConnected();
  const uint64_t ticket = after.IsEverything() ? transfers_.begun()
                          : after.IsNothing()  ? 0
                                               : transfers_.LargeTicketOf(after.cookie());
  const bool waits = held_.HoldsAll() || !transfers_.LargeStartedTo(ticket) ||
                     (after.IsEverything() && !held_.empty());
  if (waits) {
    RDMA_RETURN_IF_ERROR(HoldNote(ticket, after.IsEverything(), parts, count, notified_ + 1));
  } else {
    RDMA_RETURN_IF_ERROR(AddRecord(RecordKind::kNotification, parts, count, notified_ + 1,
                                   urgency == Urgency::kWake));
  }
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
  if (now || device_->asleep()) {
    CloseMessage();
    Pump();
  } else if (outbox_.Front() != nullptr || !outbox_.HasOpen()) {
    Attend();  // the open message does not hold all of the record
  }
  if (outbox_.HasOpen() && delayed_since_.load(std::memory_order_relaxed) == 0) {
    delayed_since_.store(Now(), std::memory_order_relaxed);
  }
  return OkStatus();
}

void LibfabricChannel::CloseMessage() {
  outbox_.Close();
  delayed_since_.store(0, std::memory_order_relaxed);
}

void LibfabricChannel::SendDelayedIfDue(Nanos before) {
  const Nanos since = delayed_since_.load(std::memory_order_relaxed);
  if (since != 0 && since <= before) Flush().IgnoreError();
}

Status LibfabricChannel::HoldNote(uint64_t ticket, bool ordered, const iovec* parts, int count,
                                  uint64_t number) {
  HeldNotes::Note note = {ticket, ordered, Joined(parts, count), number};
  RDMA_RETURN_IF_ERROR(outbox_.CheckLength(note.bytes.size()));
  RDMA_RETURN_IF_ERROR(CheckQueue(note.bytes.size(), held_.bytes()));
  outbox_.Delay(number);
  held_.Add(std::move(note));
  return OkStatus();
}

// Adds the notifications whose writes have been started.
void LibfabricChannel::AddHeld() {
  bool added = false;
  while (!held_.empty() && transfers_.LargeStartedTo(held_.front().ticket)) {
    const HeldNotes::Note& note = held_.front();
    const iovec part = {const_cast<char*>(note.bytes.data()), note.bytes.size()};
    const Status status =
        outbox_.Add(RecordKind::kNotification, &part, 1, note.number, transfers_.begun());
    if (!status.ok()) break;  // tried again when the peer has read others
    held_.Pop();
    added = true;
  }
  if (added) CloseMessage();
}

Status LibfabricChannel::Flush() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load()) || !device_->domain().Usable()) return NotConnected();
  CloseMessage();
  Pump();
  return OkStatus();
}

Backlog LibfabricChannel::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  Backlog backlog = outbox_.backlog();
  backlog.waiting_bytes += held_.bytes();
  return backlog;
}

}  // namespace rdma_transport::fabric::libfabric
