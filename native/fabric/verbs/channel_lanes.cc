// How large transfers pass through the lanes of a channel.
#include <algorithm>
#include <utility>

#include "base/parts.h"
#include "fabric/verbs/channel.h"

namespace rdma_transport::fabric::verbs {

// The length of a piece that leaves a share for each queue pair, in one of so many lanes.
uint64_t VerbsChannel::Piece(int lanes) const {
  const auto shares = std::count_if(pairs_.begin(), pairs_.end(),
                                    [](const auto& pair) { return pair->takes_shares(); });
  return Lane::PieceAmong(lanes, device_->piece()) * std::max<uint64_t>(shares, 1);
}

// Adds a record to the outbox, or to the lane if it must wait there. `number` is that of a
// notification, or 0.
Status VerbsChannel::SendAfter(After after, RecordKind kind, const iovec* parts, int count,
                               uint64_t number, bool signaled) {
  if (!writes_.Holds(after)) return AddRecord(kind, parts, count, number, signaled);
  return KeepInLane(kind, parts, count, number, signaled, after.IsEverything());
}

Status VerbsChannel::KeepInLane(RecordKind kind, const iovec* parts, int count, uint64_t number,
                                bool signaled, bool ordered) {
  Lane::Note note = {kind, Joined(parts, count), number, signaled, ordered};
  RDMA_RETURN_IF_ERROR(outbox_.Fits(note.bytes.size()));
  RDMA_RETURN_IF_ERROR(CheckQueue(note.bytes.size(), writes_.note_bytes()));
  if (number != 0) outbox_.Delay(number);
  writes_.Add(std::move(note));
  return OkStatus();
}

void VerbsChannel::AdvanceLanes() {
  AdvanceLane(&writes_);
  AdvanceLane(&reads_);
}

// Starts the pieces and notifications whose turn it is. The caller pumps.
void VerbsChannel::AdvanceLane(Lane* lane) {
  if (lane->empty()) return;
  const std::atomic<int>* lanes =
      lane == &writes_ ? device_->lanes_of_writes() : device_->lanes_of_reads();
  const uint64_t piece = Piece(lanes->load());
  while (!lane->empty() && Serving(state_.load())) {
    if (const Lane::Note* note = lane->note()) {
      const iovec part = {const_cast<char*>(note->bytes.data()), note->bytes.size()};
      const Status added = AddRecord(note->kind, &part, 1, note->number, note->signaled);
      if (added.code() == Code::kResourceExhausted) return;  // tried again as the peer takes others
      if (state_.load() == State::kBroken) return;           // and the lane was dropped
      lane->Pop();
      continue;
    }
    const uint64_t length = lane->TakePiece(piece);
    if (length == 0) return;
    Lane::Transfer& transfer = *lane->transfer();
    const RemoteSpan span = {transfer.rest.key, transfer.rest.offset, length};
    const Transfers::PeerRegion* region = nullptr;
    // The peer may have taken its memory back, which ends a transfer that is under way.
    const Status aimed = transfers_.Aim(span, transfer.work.kind, &region);
    if (!aimed.ok()) return BreakLocked(aimed);
    const bool last = length == transfer.rest.length;
    transfers_.Begin(transfer.work, last ? Transfers::Part::kLastPiece : Transfers::Part::kPiece,
                     span, *region, transfer.ends, device_->chunk(), pairs_, main_);
    transfer.work.local += length;
    transfer.rest.offset += length;
    transfer.rest.length -= length;
    if (last) lane->Pop();
  }
}

}  // namespace rdma_transport::fabric::verbs
