// Rails that fail while others go on.
//
// Each end closes its plain channel. When that can access nothing here any more, it tells the peer
// so by another rail, and how many records have come. What the peer has not got is then sent again
// by the other rails: writes that no such record followed, and notifications, which the peer tells
// from those that it has by their numbers. Behind the writes goes a record which says that all is
// settled; until it arrives, notifications wait that follow writes of the rail.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "fabric/striped/channel.h"

namespace rdma_transport::fabric::striped {

// Another rail must be there to go on with.
void StripedChannel::FailRail(size_t slot, const Status& reason) {
  Rail& rail = rails_[slot];
  if (rail.failed || rail.channel == nullptr) return;
  rail.up = false;
  rail.failed = true;
  rail.failed_as = ++failures_;
  rail.deadline = rail.carried ? Now() + 2 * std::max(device_->peer_timeout(), kSecond) : 0;
  if (rail.carried && state_.load() != State::kConnecting) {
    Log(LogLevel::kWarning, device_->name() + ": the channel " + rail.channel->Route() +
                                " continues without " + rail.name + ": " + reason.message());
  } else {
    NoteUnused(slot, reason.message());
  }
  if (!rail.closed) rail.channel->Close(reason);
  if (main_ == slot) {
    main_ = FirstUp();
    if (main_ != kNone) {
      Log(LogLevel::kInfo,
          device_->name() + ": notifications go by " + rails_[main_].channel->Route());
    }
  }
  // The peer's record about this rail may follow them, so they cannot wait for it.
  for (Sent& sent : controls_) {
    if (sent.rail != rail.id || !sent.free) continue;
    sent.rail = kLost;
    ++lost_;
  }
  writes_.ResetRails();
  reads_.ResetRails();
  timed_.store(true);
  Attend();
}

void StripedChannel::OnRailClosed(const RailEnd* end, const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    Rail* rail = Find(end);
    if (rail == nullptr || rail->closed) return;
    const size_t slot = SlotOf(rail);
    rail->closed = true;
    rail->up = false;
    rail->status = status;
    rail->released = status.code() == Code::kUnavailable;
    rail->received = inbox_.received(rail->id);
    const State state = state_.load();
    if (state < State::kClosing) device_->NoteFailure(rail->device);
    if (state == State::kParting) {
      if (slot == main_) Part(/*at_once=*/true);
    } else if (OthersThan(slot)) {
      FailRail(slot, status);
      Progress();
      Advance();
    } else {
      if (reason_.ok()) reason_ = status;
      state_.store(State::kParting);
      Part(/*at_once=*/true);
    }
  }
  ConnectIfReady(/*at_once=*/false);
  TellNews();
  EndIfClosed();
}

void StripedChannel::OnRailReleased(const RailEnd* end) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    Rail* rail = Find(end);
    if (rail == nullptr) return;
    rail->released = true;
    Progress();
    Advance();
  }
  EndIfClosed();
}

// Goes on with what rails that failed leave to do.
void StripedChannel::Progress() {
  if (!several() || !Serving() || main_ == kNone) return;
  for (size_t slot = 0; slot < rails_.size(); ++slot) {
    Rail& rail = rails_[slot];
    if (!rail.failed) continue;
    if (active_ && !rail.carried && !rail.declined) {  // or the peer waits for it to connect
      RailRecord decline;
      decline.rail = rail.id;
      decline.slot = static_cast<uint32_t>(slot);
      rail.declined = SendControl(RecordKind::kDecline, decline).ok();
    }
    if (!rail.closed || !rail.released) continue;
    if (!rail.down_sent) {
      RailRecord down;
      down.rail = rail.id;
      down.carried = rail.carried;
      down.received = rail.received;
      rail.down_sent = SendControl(RecordKind::kDown, down).ok();
    }
    if (rail.peer_down && !rail.repeated) Repeat(slot);
    if (!rail.settled || !rail.settled_there) continue;
    Empty(slot);
  }
}

// Sends again what the peer did not get on this rail.
void StripedChannel::Repeat(size_t slot) {
  Rail& rail = rails_[slot];
  rail.repeated = true;
  for (uint32_t index = 0; index < pieces_.size(); ++index) {
    Piece& piece = pieces_[index];
    if (piece.slot != slot) continue;
    const bool there = piece.covered || (piece.record != 0 && piece.record <= rail.peer_received);
    if (piece.write ? there : piece.ended) {
      FinishPiece(index);
      continue;
    }
    BeginAgain(index);
  }
  rail.writes.clear();
  rail.uncovered = 0;
  for (std::deque<Sent>* each : {&controls_, &sent_}) {
    for (Sent& sent : *each) {
      if (sent.rail != rail.id) continue;
      sent.rail = sent.record <= rail.peer_received ? kConfirmed : kLost;
      if (sent.rail == kConfirmed) continue;
      ++lost_;
      if (!sent.free) sent.waits.push_back({rail.id, 0, kUntilSettled});
    }
  }
  RailRecord settled;
  settled.rail = rail.id;
  Lane::Note note;
  note.kind = RecordKind::kSettled;
  note.bytes.assign(reinterpret_cast<const char*>(&settled), sizeof(settled));
  writes_.AddUrgent(std::move(note));
  NoteArrived();
}

Status StripedChannel::HandleControl(RecordKind kind, std::string_view bytes) {
  RailRecord record;
  if (!several() || bytes.size() < sizeof(record)) {
    return Status(Code::kDataLoss, "the peer sent what is not part of the protocol");
  }
  std::memcpy(&record, bytes.data(), sizeof(record));
  Rail* rail = FindId(record.rail);
  const Status unknown(Code::kDataLoss, "a record about a rail that does not exist");
  switch (kind) {
    case RecordKind::kDown:
      if (rail == nullptr && record.rail < next_rail_) return OkStatus();  // it was declined
      if (rail == nullptr || rail->peer_down || record.received > rail->sent) return unknown;
      rail->peer_down = true;
      rail->peer_received = record.received;
      if (!rail->failed) {
        if (!OthersThan(SlotOf(rail))) return unknown;
        FailRail(SlotOf(rail), Status(Code::kUnavailable, "the peer has left it"));
      }
      if (record.carried == 0) rail->channel->NotePeerClosed();
      return OkStatus();
    case RecordKind::kSettled:
      if (rail == nullptr || !rail->down_sent || rail->settled) return unknown;
      rail->settled = true;
      return OkStatus();
    default:
      return HandleOffer(kind, record, bytes.substr(sizeof(record)));
  }
}

}  // namespace rdma_transport::fabric::striped
