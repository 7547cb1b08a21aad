// Messages between two members.

#include <cstring>
#include <string>
#include <utility>

#include "collectives/mesh.h"
#include "collectives/mesh_peer.h"
#include "collectives/message_request.h"

namespace rdma_transport::collectives {
namespace {

Status NoRank(int rank) {
  return Status(Code::kInvalidArgument, "there is no rank " + std::to_string(rank));
}

}  // namespace

Status Mesh::Send(int peer, int tag, std::string_view bytes, bool waits,
                  std::shared_ptr<MessageRequest>* request) {
  request->reset();
  if (peer < 0 || peer >= size_ || tag < 0) {
    return Status(Code::kInvalidArgument, "cannot send to rank " + std::to_string(peer) +
                                              " with tag " + std::to_string(tag) +
                                              ": ranks are 0 to " + std::to_string(size_ - 1) +
                                              ", tags 0 and above");
  }
  if (peers_[peer] == nullptr) {
    bool received = false;
    return state_->Deliver({rank_, tag, bytes.size()}, bytes, &received);
  }
  std::shared_ptr<MessageCall> call;
  RDMA_RETURN_IF_ERROR(peers_[peer]->Send(tag, bytes, waits, &call));
  if (call != nullptr) *request = std::make_shared<MessageRequest>(state_, std::move(call));
  return OkStatus();
}

Status Mesh::Receive(int source, int tag, char* buffer, uint64_t capacity,
                     std::shared_ptr<MessageRequest>* request) {
  if (source < kAny || source >= size_) return NoRank(source);
  const auto receive = std::make_shared<collectives::Receive>();
  receive->peer = source;
  receive->tag = tag;
  receive->buffer = buffer;
  receive->capacity = capacity;
  *request = std::make_shared<MessageRequest>(state_, receive);
  std::shared_ptr<Letter> letter;
  bool whole = false;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    letter = state_->inbox.Take(source, tag);
    if (letter == nullptr) {
      const Status gone = state_->Gone(source);
      if (!gone.ok()) state_->End(receive.get(), gone);
      if (gone.ok()) state_->inbox.receives.push_back(receive);
      return OkStatus();
    }
    Match(letter.get(), receive);
    whole = letter->missing == 0;
  }
  const auto& sender = peers_[letter->envelope.source];
  if (!whole) {
    sender->Take(letter);
    return OkStatus();
  }
  if (letter->held != nullptr && receive->status.ok() && letter->envelope.length > 0) {
    std::memcpy(receive->buffer, letter->held.get(), letter->envelope.length);
  }
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->End(receive.get(), OkStatus());
  }
  if (sender != nullptr && letter->id == 0) sender->Consumed(letter->envelope.length);
  return OkStatus();
}

Status Mesh::Probe(int source, int tag, const Patience* patience, bool* found, Envelope* envelope) {
  if (source < kAny || source >= size_) return NoRank(source);
  std::unique_lock<std::mutex> lock(state_->mu);
  std::shared_ptr<Letter> letter;
  Status gone;
  const auto ends = [&] {
    letter = state_->inbox.Find(source, tag);
    if (letter == nullptr) gone = state_->Gone(source);
    return letter != nullptr || !gone.ok();
  };
  const auto check = [&] { state_->CheckAlive(source); };
  if (patience != nullptr) {
    RDMA_RETURN_IF_ERROR(state_->WaitPolling(&lock, *patience, ends, check, "no message arrived"));
  } else if (!ends()) {
    lock.unlock();
    check();
    lock.lock();
    ends();
  }
  *found = letter != nullptr;
  if (*found) *envelope = letter->envelope;
  return gone;
}

}  // namespace rdma_transport::collectives
