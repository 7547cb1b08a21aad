// What a member sends to another one.

#include <algorithm>
#include <cstring>
#include <string>

#include "collectives/mesh_peer.h"

namespace rdma_transport::collectives {
namespace {

// Shorter messages travel in their notification, below the limit of all fabrics.
constexpr size_t kMinPieces = size_t{64} << 10;
// So many blocks hold pieces that a receiver waits for: more make it no faster.
constexpr uint64_t kMaxWantedBlocks = 8;
// So many bytes of messages that nobody waits for are copied before they have a receive.
constexpr uint64_t kMaxEarlyBytes = uint64_t{8} << 20;
// So many pieces of a message that the receiver reads where they lie are announced at a time.
constexpr size_t kMaxLying = 8;

// Small pieces let the receiver copy early, large ones save notifications.
constexpr uint64_t PieceOf(uint64_t length) {
  return std::clamp(length / 8, uint64_t{16} << 10, kBlockBytes);
}

}  // namespace

Status MeshPeer::SendNote(const Note& note, std::string_view bytes, fabric::Urgency urgency) {
  const iovec parts[] = {{const_cast<Note*>(&note), sizeof(note)},
                         {const_cast<char*>(bytes.data()), bytes.size()}};
  uint64_t number = 0;
  RDMA_RETURN_IF_ERROR(channel_->Notify(parts, bytes.empty() ? 1 : 2, urgency, &number));
  Sent(number);
  return OkStatus();
}

void MeshPeer::Sent(uint64_t number) {
  uint64_t seen = sent_.load();
  while (seen < number && !sent_.compare_exchange_weak(seen, number)) {
  }
}

Status MeshPeer::Send(int tag, std::string_view bytes, bool waits,
                      std::shared_ptr<MessageCall>* call) {
  Note note;
  note.kind = Note::kMessage;
  note.tag = tag;
  note.length = bytes.size();
  const auto sending = std::make_shared<Sending>();
  const uint64_t cost = CostOf(bytes.size());
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (!lost().ok()) return lost();
    const bool room = unconsumed_ + cost <= kMaxUnconsumed || bytes.empty();
    if (bytes.size() < kMinPieces && room) {
      unconsumed_ += cost;
    } else {
      note.key = ++last_sending_;
      sending->peer = rank_;
      sending->id = note.key;
      sending->bytes = bytes;
      sending->rest = {{0, bytes.size()}};
      sending->waits = waits;
      sending->in_place = !waits && reads_in_place_ && channel_->MapsPeer();
      sendings_[note.key] = sending;
      unstaged_.push_back(sending);
    }
  }
  if (note.key == 0) {
    const Status sent = SendNote(note, bytes);
    if (sent.ok()) return OkStatus();
    std::lock_guard<std::mutex> lock(state_->mu);
    unconsumed_ -= std::min(unconsumed_, cost);
    return lost().ok() ? sent : lost();
  }
  Claim claim;
  Status sent = ClaimBlock(sending.get(), &claim);
  if (sent.ok()) sent = claim.sending == nullptr ? SendNote(note) : SendBlock(claim, note);
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (!sent.ok()) {
      Forget(*sending);
      return lost().ok() ? sent : lost();
    }
    sending->open = true;
  }
  SendPieces();
  std::lock_guard<std::mutex> lock(state_->mu);
  if (!sending->done) *call = sending;
  return sending->status;
}

// Reserves a block for the next bytes that may be copied, of the message `only` unless that is
// null. Sets `claim->sending` to null if there is none.
Status MeshPeer::ClaimBlock(const Sending* only, Claim* claim) {
  claim->sending = nullptr;
  std::lock_guard<std::mutex> lock(state_->mu);
  for (auto each = unstaged_.begin(); each != unstaged_.end(); ++each) {
    Sending& sending = **each;
    if (only == nullptr ? !sending.open : only != &sending) continue;
    const bool early = (sending.waits || early_bytes_ < kMaxEarlyBytes) &&
                       unconsumed_ + kBlockBytes <= kMaxUnconsumed;
    const bool lies = sending.in_place && (sending.wanted || !early);
    const bool full = lies             ? sending.lying >= kMaxLying
                      : sending.wanted ? wanted_blocks_ >= kMaxWantedBlocks
                                       : !early;
    if (full) continue;
    Sending::Range& rest = sending.rest.back();
    const uint64_t most = lies ? kMaxInPlace : kBlockBytes;
    const uint64_t length = std::min(most, rest.end - rest.begin);
    Sending::Staged staged = {{}, sending.wanted, length, 0, 0};
    if (lies) {
      staged.block.offset = reinterpret_cast<uint64_t>(sending.bytes.data()) + rest.begin;
      ++sending.lying;
    } else {
      RDMA_RETURN_IF_ERROR(state_->pool->Take(&staged.block));
      if (sending.wanted) ++wanted_blocks_;
      if (!sending.wanted) early_bytes_ += length;
      if (!sending.wanted) unconsumed_ += kBlockBytes;
    }
    claim->sending = *each;
    claim->piece = {sending.id, rest.begin, length, staged.block.key, staged.block.offset};
    claim->data = staged.block.data;
    sending.staged[rest.begin] = staged;
    rest.begin += length;
    if (rest.begin == rest.end) sending.rest.pop_back();
    ++sending.copying;
    ++state_->copying;
    if (sending.rest.empty()) unstaged_.erase(each);
    return OkStatus();
  }
  return OkStatus();
}

// Copies bytes to their block, if they have one, and announces piece by piece, so that the receiver
// copies meanwhile. `note` is sent with the first piece.
Status MeshPeer::SendBlock(const Claim& claim, Note note) {
  Sending& sending = *claim.sending;
  const bool whole = claim.data == nullptr || !sending.waits || !channel_->MapsPeer();
  const uint64_t size = whole ? claim.piece.length : PieceOf(sending.bytes.size());
  Status sent = claim.data == nullptr ? OkStatus() : channel_->Share(claim.piece.key);
  for (uint64_t done = 0; sent.ok() && done < claim.piece.length;) {
    Piece piece = claim.piece;
    piece.at += done;
    piece.offset += done;
    piece.length = std::min(size, claim.piece.length - done);
    if (claim.data != nullptr) {
      std::memcpy(claim.data + done, sending.bytes.data() + piece.at, piece.length);
    }
    done += piece.length;
    {
      std::lock_guard<std::mutex> lock(state_->mu);
      sending.staged[claim.piece.at].announced = done;
    }
    sent = SendNote(note, {reinterpret_cast<const char*>(&piece), sizeof(piece)});
    note = {Note::kPiece, 0, 0, 0};
  }
  std::lock_guard<std::mutex> lock(state_->mu);
  --state_->copying;
  --sending.copying;
  Settle(&sending);
  state_->changed.notify_all();
  return sent;
}

void MeshPeer::SendPieces() {
  Claim claim;
  Status status;
  while ((status = ClaimBlock(nullptr, &claim)).ok() && claim.sending != nullptr) {
    status = SendBlock(claim, {Note::kPiece, 0, 0, 0});
    if (!status.ok()) break;
  }
  if (!status.ok()) channel_->Close(status);  // the receiver expects the rest
}

Status MeshPeer::HandleTaken(const Note& note) {
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    const auto found = sendings_.find(note.key);
    if (found == sendings_.end() || note.tag <= 0) return Malformed();
    Sending& sending = *found->second;
    auto block = sending.staged.upper_bound(note.length);
    if (block == sending.staged.begin()) return Malformed();
    Sending::Staged& staged = (--block)->second;
    staged.taken += static_cast<uint64_t>(note.tag);
    if (staged.taken > staged.announced) return Malformed();
    sending.wanted = true;
    ++taken_;
    if (staged.taken == staged.length) {
      if (staged.block.data == nullptr) --sending.lying;
      Release(staged);
      sending.staged.erase(block);
      Settle(&sending);
    }
  }
  SendPieces();
  return OkStatus();
}

// From now on, messages to this member are copied.
Status MeshPeer::HandleUnread(const Note& note) {
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    const auto found = sendings_.find(note.key);
    if (found == sendings_.end()) return Malformed();
    Sending& sending = *found->second;
    const auto piece = sending.staged.find(note.length);
    if (piece == sending.staged.end()) return Malformed();
    const Sending::Staged& staged = piece->second;
    if (staged.block.data != nullptr || staged.taken > 0) return Malformed();
    reads_in_place_ = sending.in_place = false;
    sending.wanted = true;
    if (sending.rest.empty()) unstaged_.push_back(found->second);
    sending.rest.push_back({piece->first, piece->first + staged.length});
    --sending.lying;
    sending.staged.erase(piece);
  }
  SendPieces();
  return OkStatus();
}

// Ends the call when its bytes are not needed any more, and forgets a message that has been taken.
// Requires the lock.
void MeshPeer::Settle(Sending* sending) {
  if (sending->copying > 0) return;
  const bool announced = sending->rest.empty();
  if (!sending->status.ok() || (announced && sending->lying == 0)) {
    state_->End(sending, OkStatus());
  }
  if (announced && sending->staged.empty()) sendings_.erase(sending->id);
}

void MeshPeer::HandleWanted(const Note& note) {
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    const auto found = sendings_.find(note.key);
    if (found == sendings_.end()) return;  // all of it has been taken
    found->second->wanted = true;
  }
  SendPieces();
}

void MeshPeer::HandleConsumed(const Note& note) {
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    unconsumed_ -= std::min(unconsumed_, note.length);
  }
  SendPieces();
}

// Requires the lock.
void MeshPeer::Release(const Sending::Staged& staged) {
  if (staged.block.data == nullptr) return;
  if (staged.wanted) --wanted_blocks_;
  if (!staged.wanted) early_bytes_ -= staged.length;
  if (!staged.wanted) unconsumed_ -= std::min(unconsumed_, kBlockBytes);
  state_->pool->Give(staged.block);
}

// Forgets a message of which the receiver does not know. Requires the lock.
void MeshPeer::Forget(const Sending& sending) {
  for (const auto& [at, staged] : sending.staged) Release(staged);
  unstaged_.remove_if([&](const auto& each) { return each.get() == &sending; });
  sendings_.erase(sending.id);
}

// Requires the lock. The blocks are not used again, because the member may still read them.
void MeshPeer::EndSends(const Status& status) {
  seal_.Break();
  for (const auto& [id, sending] : sendings_) {
    if (sending->copying == 0) state_->End(sending.get(), status);
    if (!sending->done) sending->status = status;
  }
  sendings_.clear();
  unstaged_.clear();
}

void MeshPeer::Leave() {
  Note note;
  note.kind = Note::kLeaving;
  SendNote(note).IgnoreError();  // a lost member needs no notice
}

bool MeshPeer::Drained(uint64_t* taken) const {
  // No polling thread is woken for what has been delivered.
  const uint64_t delivered = std::max(delivered_.load(), channel_->Delivered());
  std::lock_guard<std::mutex> lock(state_->mu);
  *taken += taken_ + delivered;
  return sendings_.empty() && delivered >= sent_.load();
}

}  // namespace rdma_transport::collectives
