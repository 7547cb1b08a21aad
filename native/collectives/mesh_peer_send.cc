// What a member sends to another one.

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "collectives/mesh_peer.h"

namespace rdma_transport::collectives {
namespace {

// The most bytes of a message in one notification, below the limit of all fabrics.
constexpr size_t kMaxPart = size_t{64} << 10;
// A sender waits while the receiver has not received this much of what was sent before.
constexpr uint64_t kMaxUnconsumed = uint64_t{64} << 20;
// A call that looked at a member this long ago does not wait for it any more.
constexpr Nanos kStale = 10 * kCheckInterval;

}  // namespace

Status MeshPeer::SendNote(const Note& note, std::string_view bytes) {
  const iovec parts[] = {{const_cast<Note*>(&note), sizeof(note)},
                         {const_cast<char*>(bytes.data()), bytes.size()}};
  uint64_t number = 0;
  RDMA_RETURN_IF_ERROR(
      channel_->Notify(parts, bytes.empty() ? 1 : 2, fabric::Urgency::kWake, &number));
  Sent(number);
  return OkStatus();
}

void MeshPeer::Sent(uint64_t number) {
  uint64_t seen = sent_.load();
  while (seen < number && !sent_.compare_exchange_weak(seen, number)) {
  }
}

// Of a channel that has closed, the reason is better.
Status MeshPeer::LostOr(const Status& status) const {
  std::lock_guard<std::mutex> lock(state_->mu);
  return lost_.ok() ? status : lost_;
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
  const auto done = [&] { return !replica_.Writes(part) || !lost_.ok(); };
  return state_->Wait(&lock, patience, done, [this] { CheckAlive(); }, "a rank does not receive");
}

Status MeshPeer::Send(int tag, std::string_view bytes, const Patience& patience, bool waits) {
  std::lock_guard<std::mutex> sending(sending_);
  {
    std::unique_lock<std::mutex> lock(state_->mu);
    const auto room = [&] {
      return !waits || !lost_.ok() || unconsumed_ == 0 ||
             unconsumed_ + bytes.size() <= kMaxUnconsumed;
    };
    RDMA_RETURN_IF_ERROR(state_->Wait(
        &lock, patience, room, [this] { CheckAlive(); }, "the receiver takes no earlier message"));
    if (!lost_.ok()) return lost_;
    unconsumed_ += bytes.size();
  }
  Note note;
  note.kind = Note::kMessage;
  note.tag = tag;
  note.length = bytes.size();
  while (true) {
    const std::string_view part = bytes.substr(0, kMaxPart);
    const Status sent = SendNote(note, part);
    if (sent.code() == Code::kResourceExhausted) {
      // A deadline does not end this, because the receiver expects the rest; a lost member does.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (!sent.ok()) return LostOr(sent);
    bytes.remove_prefix(part.size());
    if (bytes.empty()) return OkStatus();
    note.kind = Note::kMore;
  }
}

void MeshPeer::CheckAlive() {
  auto verdict = Liveness::Verdict::kFine;
  Nanos silence = 0;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (memory_ == nullptr || !remote() || !lost_.ok()) return;
    const Nanos now = Now();
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
