// Notifications that wait until the large writes before them have been started.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

namespace rdma_transport::fabric::libfabric {

// Thread-compatible; guarded by the channel's lock.
class HeldNotes {
 public:
  struct Note {
    uint64_t ticket = 0;  // of the last large write that must have been started
    bool ordered = true;  // nothing may overtake it
    std::string bytes;
    uint64_t number = 0;
  };

  bool empty() const { return notes_.empty(); }
  // Whether even a notification that follows no write must wait.
  bool HoldsAll() const { return ordered_ > 0; }
  size_t bytes() const { return bytes_; }

  void Add(Note note) {
    bytes_ += note.bytes.size();
    if (note.ordered) ++ordered_;
    notes_.push_back(std::move(note));
  }
  const Note& front() const { return notes_.front(); }
  void Pop() {
    bytes_ -= notes_.front().bytes.size();
    if (notes_.front().ordered) --ordered_;
    notes_.pop_front();
  }
  void Drop() {
    notes_.clear();
    ordered_ = 0;
    bytes_ = 0;
  }

 private:
  std::deque<Note> notes_;
  size_t ordered_ = 0;
  size_t bytes_ = 0;
};

}  // namespace rdma_transport::fabric::libfabric
