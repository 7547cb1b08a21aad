// What a member sends to another one.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "collectives/mesh_peer.h"

namespace rdma_transport::collectives {
namespace {

// Shorter messages travel in their notification, below the limit of all fabrics.
constexpr size_t kMinPieces = size_t{64} << 10;
// So many blocks hold pieces that a receiver waits for: more make it no faster.
constexpr uint64_t kMaxWantedBlocks = 8;
// What messages that nobody waits for may take before they have a receive: their bytes stay where
// they are, and blocks that are soon used again stay in the cache.
constexpr uint64_t kMaxEarlyBlocks = 8;
// A call that looked at a member this long ago does not wait for it any more.
constexpr Nanos kStale = 10 * kCheckInterval;

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

Status MeshPeer::Announce(const Announcement& announcement, const Patience& patience) {
  bool written = false;
  while (true) {
    uint64_t number = 0;
    const Status sent =
        replica_.Send(announcement, channel_.get(), *state_->own->region, &written, &number);
    if (sent.ok()) Sent(number);
    if (sent.ok() || sent.code() == Code::kUnavailable) return OkStatus();
    if (sent.code() != Code::kResourceExhausted) {
      // Not InvalidArgument, after which the group would go on.
      return Status(Code::kInternal,
                    "cannot write to rank " + std::to_string(rank_) + ": " + sent.message());
    }
    CheckAlive();
    if (patience.interrupted != nullptr && patience.interrupted()) {
      return Status(Code::kCancelled, "interrupted");
    }
    if (Now() >= patience.deadline) {
      return Status(Code::kDeadlineExceeded,
                    "rank " + std::to_string(rank_) + " does not take its notifications");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status MeshPeer::WaitWritten(size_t part, const Patience& patience) {
  if (!replica_.Writes(part)) return OkStatus();
  std::unique_lock<std::mutex> lock(state_->mu);
  const auto done = [&] { return !replica_.Writes(part) || !lost().ok(); };
  return state_->Wait(&lock, patience, done, [this] { CheckAlive(); }, "a rank does not receive");
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
      sending->waits = waits;
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
    const bool early = sending.waits || early_blocks_ < kMaxEarlyBlocks;
    const bool full = sending.wanted ? wanted_blocks_ >= kMaxWantedBlocks
                                     : !early || unconsumed_ + kBlockBytes > kMaxUnconsumed;
    if (full) continue;
    Block block;
    RDMA_RETURN_IF_ERROR(state_->pool->Take(&block));
    ++(sending.wanted ? wanted_blocks_ : early_blocks_);
    if (!sending.wanted) unconsumed_ += kBlockBytes;
    const uint64_t length = std::min<uint64_t>(kBlockBytes, sending.bytes.size() - sending.next);
    claim->sending = *each;
    claim->piece = {sending.id, sending.next, length, block.key, block.offset};
    claim->data = block.data;
    sending.staged[sending.next] = {block, sending.wanted, length, 0, 0};
    sending.next += length;
    ++sending.copying;
    ++state_->copying;
    if (sending.next == sending.bytes.size()) unstaged_.erase(each);
    return OkStatus();
  }
  return OkStatus();
}

// Copies bytes to their block, and announces piece by piece, so that the receiver copies meanwhile.
// `note` is sent with the first piece.
Status MeshPeer::SendBlock(const Claim& claim, Note note) {
  Sending& sending = *claim.sending;
  const uint64_t size = channel_->MapsPeer() ? PieceOf(sending.bytes.size()) : kBlockBytes;
  Status sent = channel_->Share(claim.piece.key);
  for (uint64_t done = 0; sent.ok() && done < claim.piece.length;) {
    Piece piece = claim.piece;
    piece.at += done;
    piece.offset += done;
    piece.length = std::min(size, claim.piece.length - done);
    std::memcpy(claim.data + done, sending.bytes.data() + piece.at, piece.length);
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
  const bool ends = sending.next == sending.bytes.size() || !sending.status.ok();
  if (--sending.copying == 0 && ends) state_->End(&sending, OkStatus());
  Retire(sending);
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
      Release(staged);
      sending.staged.erase(block);
      Retire(sending);
    }
  }
  SendPieces();
  return OkStatus();
}

// Forgets a message that has been taken. Requires the lock.
void MeshPeer::Retire(const Sending& sending) {
  if (sending.next < sending.bytes.size() || sending.copying > 0) return;
  if (sending.staged.empty()) sendings_.erase(sending.id);
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
  --(staged.wanted ? wanted_blocks_ : early_blocks_);
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

void MeshPeer::CheckAlive() {
  auto verdict = Liveness::Verdict::kFine;
  Nanos silence = 0;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (memory_ == nullptr || !remote() || !lost().ok()) return;
    const Nanos now = Now();
    if (now - checked_at_ < kCheckInterval / 2) return;  // polls come often
    if (heard_.exchange(false)) liveness_.OnHeard();
    // Also if this process was stopped meanwhile.
    verdict = liveness_.Check(now, state_->peer_timeout, now - checked_at_ > kStale);
    checked_at_ = now;
    silence = liveness_.Silence(now);
  }
  if (verdict == Liveness::Verdict::kPing) {
    Note note;
    note.kind = Note::kPing;
    SendNote(note).IgnoreError();  // a peer that cannot be pinged is silent
  } else if (verdict == Liveness::Verdict::kSilent) {
    const Status silent(Code::kUnavailable, "it has not answered for " +
                                                std::to_string(silence / kMillisecond) + " ms");
    Lose(silent);
    channel_->Close(silent);
  }
}

}  // namespace rdma_transport::collectives
