// The transfers of a channel: small ones go by the main rail, large ones in pieces by all.
#include <algorithm>
#include <bitset>
#include <utility>

#include "fabric/striped/channel.h"

namespace rdma_transport::fabric::striped {
namespace {

constexpr uint64_t kPage = 4096;

constexpr uint32_t Bit(size_t slot) { return uint32_t{1} << slot; }

constexpr Access AccessFor(bool write) {
  return write ? Access::kRemoteReadWrite : Access::kRemoteRead;
}

}  // namespace

Status StripedChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  return Begin(/*write=*/false, source, destination, cookie);
}

Status StripedChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Begin(/*write=*/true, destination, const_cast<char*>(source), cookie);
}

Status StripedChannel::Begin(bool write, const RemoteSpan& span, char* local, uint64_t cookie) {
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) return NotConnected();
  if (several()) timed_.store(true, std::memory_order_relaxed);
  const uint64_t piece = rails_[main_ == kNone ? 0 : main_].device->pace().piece;
  Status refused;
  uint32_t rails = 0;
  if (main_ != kNone && Lane::Takes(span.length, piece)) {
    rails = RailsFor(write, span, local, &refused);
  } else if (main_ != kNone) {
    refused = BeginWhole(write, span, local, cookie);
    if (refused.ok()) return refused;
  }
  // After a failure, the peer's memory may not be known yet on the rails that are left.
  RemoteSpan found;
  const bool later = OthersThan(kNone) && (main_ == kNone || Unsettled()) &&
                     refused.code() != Code::kResourceExhausted && Locate(local, &found) &&
                     found.length >= span.length;
  if (!refused.ok() && rails == 0 && !later) {
    if (write || refused.code() == Code::kUnavailable) return refused;
    ended_.emplace_back(cookie, refused);
    Attend();
    return OkStatus();
  }
  const uint64_t share = span.length / std::max<size_t>(std::bitset<32>(rails).count(), 1) + kPage;
  Lane::Transfer transfer;
  transfer.cookie = cookie;
  transfer.index = NewTransfer(cookie);
  transfer.local = local;
  transfer.rest = span;
  transfer.most = std::max(share, piece / 4) / kPage * kPage;
  transfer.rails = rails;
  transfers_[transfer.index].waiting = 1;
  (write ? writes_ : reads_).Add(transfer);
  Advance();
  return OkStatus();
}

// By the main rail; by another one if only that has the memory.
Status StripedChannel::BeginWhole(bool write, const RemoteSpan& span, char* local,
                                  uint64_t cookie) {
  Piece piece;
  piece.write = write;
  piece.cookie = cookie;
  piece.local = local;
  piece.span = span;
  Status refused;
  const size_t main = main_;
  const bool any = !several() || write;
  for (size_t turn = 0; turn < rails_.size(); ++turn) {
    const size_t slot = turn == 0 ? main : turn <= main ? turn - 1 : turn;
    if (!rails_[slot].up) continue;
    Status begun = any ? OkStatus() : rails_[slot].channel->Check(local, span, AccessFor(write));
    if (begun.ok()) begun = BeginPiece(slot, piece);
    if (begun.ok()) {
      if (write && slot != main_ && SendMark(slot)) {
        Remember(cookie, {{rails_[slot].id, 0, rails_[slot].sent}});
      }
      return begun;
    }
    if (begun.code() == Code::kUnavailable && OthersThan(slot)) {
      FailRail(slot, begun);
    } else if (refused.ok()) {
      refused = begun;
    }
  }
  return refused.ok() ? NotConnected() : refused;
}

Status StripedChannel::Flush() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving() || main_ == kNone) return NotConnected();
  return rails_[main_].channel->Flush();  // the others are at the end of each turn
}

uint32_t StripedChannel::NewTransfer(uint64_t cookie) {
  if (free_transfers_.empty()) {
    free_transfers_.push_back(static_cast<uint32_t>(transfers_.size()));
    transfers_.emplace_back();
  }
  const uint32_t index = free_transfers_.back();
  free_transfers_.pop_back();
  transfers_[index] = {cookie, 0, 0, OkStatus()};
  return index;
}

Status StripedChannel::BeginPiece(size_t slot, const Piece& piece) {
  if (free_pieces_.empty()) {
    free_pieces_.push_back(static_cast<uint32_t>(pieces_.size()));
    pieces_.emplace_back();
  }
  const uint32_t index = free_pieces_.back();
  Rail& rail = rails_[slot];
  RDMA_RETURN_IF_ERROR(piece.write ? rail.channel->Write(piece.local, piece.span, index)
                                   : rail.channel->Read(piece.span, piece.local, index));
  free_pieces_.pop_back();
  pieces_[index] = piece;
  pieces_[index].slot = slot;
  rail.under_way[piece.write ? 1 : 0] += piece.counted;
  if (piece.transfer != kWhole) {
    ++transfers_[piece.transfer].unfinished;
    rail.flush |= piece.write;
  }
  if (piece.write && several()) {
    rail.writes.push_back(index);
    ++rail.uncovered;
  }
  return OkStatus();
}

// --- Large ones ---

// Returns a bit for each rail that can carry the transfer; 0: `status` says why.
uint32_t StripedChannel::RailsFor(bool write, const RemoteSpan& span, const char* local,
                                  Status* status) const {
  uint32_t rails = 0;
  *status = NotConnected();
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (!rails_[i].up) continue;
    const Status can = rails_[i].channel->Check(local, span, AccessFor(write));
    if (can.ok()) rails |= Bit(i);
    if (status->code() == Code::kUnavailable) *status = can;
  }
  return rails;
}

// Returns the rail with the most room, and the length of the next piece; or kNone.
size_t StripedChannel::ChooseRail(const Lane::Transfer& transfer, bool write,
                                  uint64_t* length) const {
  const int lanes = (write ? device_->lanes_of_writes() : device_->lanes_of_reads())->load();
  size_t best = kNone;
  double least = 0;
  for (size_t i = 0; i < rails_.size(); ++i) {
    if ((transfer.rails & Bit(i)) == 0 || !rails_[i].up) continue;
    const Pace pace = rails_[i].device->pace();
    const uint64_t piece = Lane::PieceAmong(lanes, pace.piece);
    const uint64_t most = write ? pace.window : pace.reads;
    const uint64_t window = std::max(most / static_cast<uint64_t>(std::max(lanes, 1)), piece);
    const uint64_t under_way = rails_[i].under_way[write ? 1 : 0];
    const uint64_t next = std::min({transfer.rest.length, piece, transfer.most});
    if (under_way > 0 && under_way + next > window) continue;
    const double filled = static_cast<double>(under_way) / static_cast<double>(window);
    if (best != kNone && filled > least) continue;
    if (best != kNone && filled == least) {
      const uint64_t by_best = transfer.carried[best];
      if (transfer.carried[i] > by_best || (transfer.carried[i] == by_best && i != main_)) continue;
    }
    best = i;
    least = filled;
    *length = next;
  }
  return best;
}

// Starts the pieces and notifications whose turn it is.
void StripedChannel::Advance() {
  if (!Serving() || main_ == kNone) return;
  if (lost_ > 0) RepeatNotes();
  AdvanceLane(&writes_);
  AdvanceLane(&reads_);
  for (Rail& rail : rails_) {
    if (std::exchange(rail.flush, false) && rail.up) rail.channel->Flush().IgnoreError();
  }
  TryPart(0);
}

void StripedChannel::AdvanceLane(Lane* lane) {
  while (!lane->empty() && Serving() && main_ != kNone) {
    const Lane::Note* note = lane->note();
    if (note == nullptr) {
      if (!AdvanceTransfer(lane)) return;
      continue;
    }
    const iovec part = {const_cast<char*>(note->bytes.data()), note->bytes.size()};
    const Status sent = SendNote(note->kind, &part, 1, note->urgency, note->number, note->after);
    // Tried again as the peer takes others, or as the end is told.
    if (sent.code() == Code::kResourceExhausted || sent.code() == Code::kUnavailable) return;
    if (!sent.ok()) return CloseLocked(sent);
    lane->Pop();
  }
}

// Starts the next piece of the first transfer. Returns false if it must wait.
bool StripedChannel::AdvanceTransfer(Lane* lane) {
  Lane::Transfer& transfer = *lane->transfer();
  const bool write = lane == &writes_;
  Status refused;
  if (transfer.rails == 0) {
    transfer.rails = RailsFor(write, transfer.rest, transfer.local, &refused);
  }
  if (transfer.rails == 0 && Unsettled()) return false;
  uint64_t length = 0;
  size_t slot = kNone;
  if (transfer.rails != 0) {
    slot = ChooseRail(transfer, write, &length);
    if (slot == kNone) return false;
    Piece piece;
    piece.write = write;
    piece.transfer = transfer.index;
    piece.local = transfer.local;
    piece.span = {transfer.rest.key, transfer.rest.offset, length};
    piece.counted = length;
    refused = BeginPiece(slot, piece);
    if (refused.code() == Code::kUnavailable) {
      if (!OthersThan(slot)) return false;  // its end will be told
      FailRail(slot, refused);
      return true;
    }
    if (!refused.ok()) transfer.rails &= ~Bit(slot);
  }
  if (transfer.rails == 0 && !Unsettled()) {
    if (!write) {
      const uint32_t index = transfer.index;
      lane->Pop();
      transfers_[index].status = refused;
      --transfers_[index].waiting;
      FinishTransfer(index);
      Attend();
      return true;
    }
    // What follows must not arrive. The peer may have taken its memory back, or the rails that are
    // left have no room to register the source.
    lane->Drop();
    CloseLocked(refused);
    return false;
  }
  if (!refused.ok()) return transfer.rails != 0;
  transfer.carried[slot] += length;
  transfer.local += length;
  transfer.rest.offset += length;
  transfer.rest.length -= length;
  if (transfer.rest.length > 0) return true;
  const Lane::Transfer begun = transfer;
  lane->Pop();
  EndBegin(begun, write);
  return true;
}

// All pieces have begun.
void StripedChannel::EndBegin(const Lane::Transfer& transfer, bool write) {
  --transfers_[transfer.index].waiting;
  if (!write || !several()) return;
  std::vector<Wait> waits;
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (transfer.carried[i] == 0 || i == main_) continue;
    if (SendMark(i)) waits.push_back({rails_[i].id, 0, rails_[i].sent});
  }
  if (!waits.empty() && !transfer.again) Remember(transfer.cookie, std::move(waits));
}

// --- Their ends ---

void StripedChannel::OnPieceEnded(const RailEnd* end, uint64_t index, const Status& status) {
  std::unique_lock<std::mutex> lock(mu_);
  Rail* rail = Find(end);
  if (rail == nullptr || index >= pieces_.size()) return;
  const size_t slot = SlotOf(rail);
  Piece& piece = pieces_[index];
  if (piece.slot != slot || piece.ended) return;
  if (several()) rail->heard = Now();
  const bool lost = piece.write || status.code() == Code::kUnavailable;
  if (!status.ok() && lost && OthersThan(slot)) {
    FailRail(slot, status);  // it is repeated on another one
  } else {
    piece.ended = true;
    uint64_t& under_way = rail->under_way[piece.write ? 1 : 0];
    under_way -= std::min(under_way, piece.counted);
    if (!status.ok() && piece.transfer != kWhole) transfers_[piece.transfer].status = status;
    const bool last = piece.transfer == kWhole || transfers_[piece.transfer].waiting == 0;
    if (!status.ok() && piece.transfer == kWhole) {
      ended_.emplace_back(piece.cookie, status);
      piece.slot = kNone;
      // If there are several, the last one is about to close, and remembers the write.
      if (!piece.write || !several()) free_pieces_.push_back(static_cast<uint32_t>(index));
    } else if (!piece.write || !several() || piece.covered) {
      FinishPiece(static_cast<uint32_t>(index));
    } else if (piece.record == 0 ? last : piece.record > rail->woken) {
      SendMark(slot);
    }
    Advance();
  }
  TellNews(&lock);
}

// Puts a piece before all others, on another rail.
void StripedChannel::BeginAgain(uint32_t index) {
  Piece& piece = pieces_[index];
  Lane::Transfer transfer;
  transfer.index = piece.transfer == kWhole ? NewTransfer(piece.cookie) : piece.transfer;
  transfer.cookie = transfers_[transfer.index].cookie;
  transfer.local = piece.local;
  transfer.rest = piece.span;
  transfer.again = true;
  ++transfers_[transfer.index].waiting;
  if (piece.transfer != kWhole) --transfers_[transfer.index].unfinished;
  (piece.write ? writes_ : reads_).AddUrgent(transfer);
  piece.slot = kNone;
  free_pieces_.push_back(index);
}

void StripedChannel::FinishPiece(uint32_t index) {
  Piece& piece = pieces_[index];
  piece.slot = kNone;
  free_pieces_.push_back(index);
  if (piece.transfer == kWhole) {
    ended_.emplace_back(piece.cookie, OkStatus());
    return;
  }
  --transfers_[piece.transfer].unfinished;
  FinishTransfer(piece.transfer);
}

// If nothing of it is left.
void StripedChannel::FinishTransfer(uint32_t index) {
  const Transfer& transfer = transfers_[index];
  if (transfer.unfinished > 0 || transfer.waiting > 0) return;
  ended_.emplace_back(transfer.cookie, transfer.status);
  free_transfers_.push_back(index);
}

void StripedChannel::OnRailDelivered(const RailEnd* end, uint64_t number) {
  std::unique_lock<std::mutex> lock(mu_);
  Rail* rail = Find(end);
  if (rail == nullptr) return;
  if (!several()) {
    NoteDelivered(number);
    Advance();
    return TellNews(&lock);
  }
  rail->delivered = std::max(rail->delivered, number);
  rail->heard = Now();
  while (!rail->writes.empty()) {
    Piece& piece = pieces_[rail->writes.front()];
    if (piece.record == 0 || piece.record > rail->delivered) break;
    piece.covered = true;
    if (piece.ended && piece.slot != kNone) FinishPiece(rail->writes.front());
    rail->writes.pop_front();
  }
  NoteArrived();
  Progress();
  Advance();
  TellNews(&lock);
}

}  // namespace rdma_transport::fabric::striped
