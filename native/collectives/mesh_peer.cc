#include "collectives/mesh_peer.h"

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

namespace rdma_transport::collectives {
namespace {

// A call that looked at a member this long ago does not wait for it any more.
constexpr Nanos kStale = 10 * kCheckInterval;

}  // namespace

Status MeshPeer::Malformed() const {
  return Status(Code::kDataLoss,
                "rank " + std::to_string(rank_) + " sent a malformed notification");
}

const fabric::MappedSpan* MeshPeer::FindShared(uint64_t key, uint64_t* length) const {
  const auto found = shared_.find(key);
  if (found == shared_.end()) return nullptr;
  *length = found->second.length;
  return &found->second.span;
}

void MeshPeer::OnConnected() {
  Note hello;
  hello.kind = Note::kHello;
  hello.key = state_->own->region->key();
  Status status = OkStatus();
  if (!channel_->MapsPeer()) {
    status = replica_.Open(state_->own->device.get());
    if (status.ok()) hello.key = replica_.key();
  }
  if (status.ok()) status = channel_->Share(hello.key);
  const SealPlace seal = seal_.place();
  const std::string_view bytes(reinterpret_cast<const char*>(&seal), sizeof(seal));
  if (status.ok()) status = SendNote(hello, bytes);
  if (!status.ok()) channel_->Close(status);
}

void MeshPeer::OnTransfer(uint64_t cookie, const Status& status) {
  if (EndRemoteRead(cookie, status)) return;
  if (!status.ok()) return channel_->Close(status);
  if (!Replica::Owns(cookie)) return EndRead(cookie);
  if (!replica_.OnTransfer(cookie)) return;
  std::lock_guard<std::mutex> lock(state_->mu);
  state_->changed.notify_all();
}

void MeshPeer::OnNotify(const char* data, size_t length) {
  heard_.store(true, std::memory_order_relaxed);
  Note note;
  Status status = Malformed();
  if (length >= sizeof(note)) {
    std::memcpy(&note, data, sizeof(note));
    status = Handle(note, std::string_view(data + sizeof(note), length - sizeof(note)));
  }
  if (status.ok()) return;
  Lose(status);
  channel_->Close(status);
}

Status MeshPeer::Handle(const Note& note, std::string_view bytes) {
  switch (note.kind) {
    case Note::kHello:
      return HandleHello(note, bytes);
    case Note::kShare:
      return HandleShare(note);
    case Note::kWithdraw: {
      fabric::MappedSpan dropped;  // unmapped after the lock
      std::lock_guard<std::mutex> lock(state_->mu);
      const auto found = shared_.find(note.key);
      if (found == shared_.end()) return OkStatus();
      dropped = std::move(found->second.span);
      shared_.erase(found);
      return OkStatus();
    }
    case Note::kMessage:
      return HandleMessage(note, bytes);
    case Note::kPiece:
      return HandlePiece(bytes);
    case Note::kWanted:
      HandleWanted(note);
      return OkStatus();
    case Note::kTaken:
      return HandleTaken(note);
    case Note::kUnread:
      return HandleUnread(note);
    case Note::kConsumed:
      HandleConsumed(note);
      return OkStatus();
    case Note::kLeaving:
      return HandleLeaving();
    case Note::kPing: {
      Note pong;
      pong.kind = Note::kPong;
      return SendNote(pong);
    }
    case Note::kPong:
      return OkStatus();
    case Note::kStep:
    case Note::kCall: {
      auto* const own = reinterpret_cast<Board*>(state_->own->region->address());
      return replica_.Take(note, bytes, own, rank_) ? OkStatus() : Malformed();
    }
    default:
      return Malformed();
  }
}

Status MeshPeer::HandleHello(const Note& note, std::string_view bytes) {
  if (bytes.size() != sizeof(its_seal_)) return Malformed();
  fabric::MappedSpan span;
  const char* memory = replica_.memory();
  if (memory == nullptr) {
    span = channel_->Map({note.key, 0, kRegionBytes});
    memory = span.data;
  }
  if (memory == nullptr) {
    return Status(Code::kResourceExhausted,
                  "cannot map the memory of rank " + std::to_string(rank_));
  }
  replica_.SetTarget(note.key);
  std::lock_guard<std::mutex> lock(state_->mu);
  if (memory_ != nullptr) return Malformed();
  memory_ = memory;
  std::memcpy(&its_seal_, bytes.data(), sizeof(its_seal_));
  mapped_ = std::move(span);
  state_->changed.notify_all();
  return OkStatus();
}

Status MeshPeer::HandleShare(const Note& note) {
  fabric::MappedSpan span = channel_->Map({note.key, 0, note.length});
  std::lock_guard<std::mutex> lock(state_->mu);
  shared_[note.key] = {note.length, std::move(span)};  // a failed mapping is found by Map()
  state_->changed.notify_all();
  return OkStatus();
}

Status MeshPeer::Announce(const Announcement& announcement, const Patience& patience) {
  bool written = false;
  while (true) {
    uint64_t number = 0;
    const Status sent = replica_.Send(announcement, channel_.get(), &written, &number);
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
  const auto check = [this] { CheckAlive(); };
  return state_->WaitPolling(&lock, patience, done, check, "a rank does not receive");
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

void MeshPeer::OnClosed(const Status& status) {
  KeepSource();
  if (status.code() == Code::kUnavailable) released_.store(true);
  Lose(status);
}

void MeshPeer::KeepSource() {
  bool writes = false;
  for (size_t part = 0; part < kParts; ++part) writes |= replica_.Writes(part);
  std::shared_ptr<const void> arrays;
  bool reads = false;
  std::vector<std::shared_ptr<const void>> targets;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    arrays = state_->arrays;
    reads = !reads_.empty();
    for (const auto& [cookie, each] : remote_reads_) {
      if (targets.empty() || targets.back() != each->target) targets.push_back(each->target);
    }
  }
  if (writes) channel_->Keep(OwnerRef::Holding(std::pair(state_->own, arrays)));
  if (reads) channel_->Keep(OwnerRef::Holding(state_->pool));
  if (!targets.empty()) channel_->Keep(OwnerRef::Holding(std::move(targets)));
}

void MeshPeer::Lose(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (!lost().ok()) return;
    Status& reason = state_->absent[rank_].lost;
    const auto place = static_cast<size_t>(rank_);
    const int name = place < state_->names.size() ? state_->names[place] : rank_;
    reason = Status(Code::kUnavailable,
                    "rank " + std::to_string(name) + " is gone: " + status.message());
    EndSends(reason);
    EndLetters(reason);
    EndRemoteReads(reason);
    state_->EndReceives();
  }
  std::lock_guard<std::mutex> lock(state_->hook_mu);
  if (state_->lost_hook) state_->lost_hook();
}

}  // namespace rdma_transport::collectives
