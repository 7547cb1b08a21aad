#include "collectives/mesh_peer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace rdma_transport::collectives {
namespace {

constexpr uint64_t kMaxMessage = uint64_t{1} << 40;

Status Malformed(int rank) {
  return Status(Code::kDataLoss, "rank " + std::to_string(rank) + " sent a malformed notification");
}

}  // namespace

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
  if (replica_.OnTransfer(cookie)) {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->changed.notify_all();
  }
  if (!status.ok()) channel_->Close(status);
}

void MeshPeer::OnNotify(const char* data, size_t length) {
  heard_.store(true, std::memory_order_relaxed);
  Note note;
  Status status = Malformed(rank_);
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
    case Note::kMore:
      return HandleMessage(note, bytes);
    case Note::kConsumed: {
      std::lock_guard<std::mutex> lock(state_->mu);
      unconsumed_ -= std::min(unconsumed_, note.length);
      state_->changed.notify_all();
      return OkStatus();
    }
    case Note::kPing: {
      Note pong;
      pong.kind = Note::kPong;
      return SendNote(pong);
    }
    case Note::kPong:
      return OkStatus();
    case Note::kStep:
    case Note::kCall: {
      const auto& own = *reinterpret_cast<const Board*>(state_->own->region->address());
      return replica_.Take(note, bytes, own, rank_) ? OkStatus() : Malformed(rank_);
    }
    default:
      return Malformed(rank_);
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
  if (memory_ != nullptr) return Malformed(rank_);
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

Status MeshPeer::HandleMessage(const Note& note, std::string_view bytes) {
  if (note.kind == Note::kMessage) {
    if (expected_ != incoming_.bytes.size() || note.length > kMaxMessage) return Malformed(rank_);
    incoming_ = {rank_, note.tag, {}};
    expected_ = note.length;
  }
  if (bytes.size() > expected_ - incoming_.bytes.size()) return Malformed(rank_);
  incoming_.bytes.append(bytes);
  if (incoming_.bytes.size() < expected_) return OkStatus();
  expected_ = 0;
  std::lock_guard<std::mutex> lock(state_->mu);
  state_->letters.push_back(std::exchange(incoming_, {}));
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
    if (replica_.Writes(part)) return channel_->Keep(OwnerRef::Holding(state_->own));
  }
}

void MeshPeer::Lose(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (!lost_.ok()) return;
    lost_ = Status(Code::kUnavailable,
                   "rank " + std::to_string(rank_) + " is gone: " + status.message());
    state_->changed.notify_all();
  }
  std::lock_guard<std::mutex> lock(state_->hook_mu);
  if (state_->lost_hook) state_->lost_hook();
}

}  // namespace rdma_transport::collectives
