#include "collectives/mesh_peer.h"

#include <cstring>
#include <string>
#include <utility>

namespace rdma_transport::collectives {

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
  if (status.ok()) status = SendNote(hello);
  if (!status.ok()) channel_->Close(status);
}

void MeshPeer::OnTransfer(uint64_t cookie, const Status& status) {
  if (!status.ok()) return channel_->Close(status);
  if (cookie >= kParts) return EndRead(cookie);
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
      return HandleHello(note);
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

Status MeshPeer::HandleHello(const Note& note) {
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

void MeshPeer::OnClosed(const Status& status) {
  KeepSource();
  if (status.code() == Code::kUnavailable) released_.store(true);
  Lose(status);
}

void MeshPeer::KeepSource() {
  for (size_t part = 0; part < kParts; ++part) {
    if (!replica_.Writes(part)) continue;
    channel_->Keep(OwnerRef::Holding(state_->own));
    break;
  }
  std::lock_guard<std::mutex> lock(state_->mu);
  if (!reads_.empty()) channel_->Keep(OwnerRef::Holding(state_->pool));
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
    state_->EndReceives();
  }
  std::lock_guard<std::mutex> lock(state_->hook_mu);
  if (state_->lost_hook) state_->lost_hook();
}

}  // namespace rdma_transport::collectives
