// Messages between two members.

#include <algorithm>
#include <string>
#include <utility>

#include "collectives/mesh.h"
#include "collectives/mesh_peer.h"

namespace rdma_transport::collectives {
namespace {

bool Matches(const Letter& letter, int source, int tag) {
  return (source == kAny || letter.source == source) && (tag == kAny || letter.tag == tag);
}

}  // namespace

Status Mesh::Send(int peer, int tag, std::string_view bytes, const Patience& patience, bool waits) {
  if (peer < 0 || peer >= size_ || tag < 0) {
    return Status(Code::kInvalidArgument, "cannot send to rank " + std::to_string(peer) +
                                              " with tag " + std::to_string(tag) +
                                              ": ranks are 0 to " + std::to_string(size_ - 1) +
                                              ", tags 0 and above");
  }
  if (peers_[peer] != nullptr) return peers_[peer]->Send(tag, bytes, patience, waits);
  std::lock_guard<std::mutex> lock(state_->mu);
  state_->letters.push_back({rank_, tag, std::string(bytes)});
  state_->changed.notify_all();
  return OkStatus();
}

Status Mesh::Receive(int source, int tag, const Patience& patience, Letter* letter) {
  if (source < kAny || source >= size_) {
    return Status(Code::kInvalidArgument, "there is no rank " + std::to_string(source));
  }
  {
    std::unique_lock<std::mutex> lock(state_->mu);
    auto& letters = state_->letters;
    auto found = letters.end();
    const auto done = [&] {
      found = std::find_if(letters.begin(), letters.end(),
                           [&](const Letter& each) { return Matches(each, source, tag); });
      if (found != letters.end()) return true;
      // From any rank: fails as soon as one is lost, because it may be the one that was to send.
      return std::any_of(peers_.begin(), peers_.end(), [&](const auto& peer) {
        const auto rank = &peer - peers_.data();
        return peer != nullptr && !peer->lost().ok() && (source == kAny || source == rank);
      });
    };
    const auto check = [&] {
      for (int peer = 0; peer < size_; ++peer) {
        if (peers_[peer] != nullptr && (source == kAny || source == peer)) {
          peers_[peer]->CheckAlive();
        }
      }
    };
    RDMA_RETURN_IF_ERROR(state_->Wait(&lock, patience, done, check, "no message arrived"));
    if (found == letters.end()) {
      for (const auto& peer : peers_) {
        const auto rank = &peer - peers_.data();
        if (peer == nullptr || (source != kAny && source != rank)) continue;
        if (!peer->lost().ok()) return peer->lost();
      }
    }
    *letter = std::move(*found);
    letters.erase(found);
  }
  const auto& sender = peers_[letter->source];
  if (sender == nullptr) return OkStatus();
  Note note;
  note.kind = Note::kConsumed;
  note.length = letter->bytes.size();
  sender->SendNote(note).IgnoreError();  // a lost sender does not wait
  return OkStatus();
}

bool Mesh::Probe(int* source, int* tag, size_t* length) const {
  std::lock_guard<std::mutex> lock(state_->mu);
  for (const Letter& letter : state_->letters) {
    if (!Matches(letter, *source, *tag)) continue;
    *source = letter.source;
    *tag = letter.tag;
    *length = letter.bytes.size();
    return true;
  }
  return false;
}

}  // namespace rdma_transport::collectives
