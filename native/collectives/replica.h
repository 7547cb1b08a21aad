// How two members that cannot map each other's memory share it: each has a replica of the other's
// region, and the owner writes there what the other one is to read.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "collectives/board.h"
#include "collectives/note.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

// Bytes that a member writes for another one. None if `length` is 0.
struct Span {
  const char* from = nullptr;  // in a region of the sender's device
  size_t length = 0;
  uint64_t key = 0;     // of the region of the receiver where they go; 0: its replica
  uint64_t offset = 0;  // there
};

// What a member tells another one in a step.
struct Announcement {
  uint32_t step = 0;
  Span span;                               // what the receiver is to read
  const Descriptor* descriptor = nullptr;  // of the first step of a call, or null
  int parity = 0;                          // of the call
};

// One end. The polling thread calls Open(), Take() and OnTransfer(), a call of the group the
// others.
class Replica {
 public:
  // Allocates the replica of the peer's region, which the peer may write.
  Status Open(fabric::Device* device);
  // Null before Open().
  const char* memory() const { return region_ == nullptr ? nullptr : region_->address(); }
  uint64_t key() const { return region_->key(); }
  // Sets the key of the peer's replica of this member's region. Before the others below.
  void SetTarget(uint64_t key) { target_ = key; }

  // Applies a note of kind kStep or kCall, and wakes this member if it sleeps for `rank`, that of
  // the peer. `own`: the board of this member. Returns false if the note is malformed.
  bool Take(const Note& note, std::string_view bytes, Board* own, int rank);

  // Sends an announcement: small spans in the notification itself, others by a write before it.
  // Sets the number of the notification, or returns the channel's errors. `written` must be false
  // for the first attempt, and is kept between attempts.
  Status Send(const Announcement& announcement, fabric::Channel* channel, bool* written,
              uint64_t* number);
  // Whether a transfer of the channel is a write of Send(). Other users choose smaller cookies.
  static bool Owns(uint64_t cookie) { return cookie >= kFirstCookie; }
  // Such a write has ended. Returns whether it was the last one of its part.
  bool OnTransfer(uint64_t cookie);
  // Returns whether writes from this part (PartAt()) have not ended. Those into other regions than
  // the replica count as of part 0.
  bool Writes(size_t part) const { return writing_[part].load(std::memory_order_acquire) != 0; }

 private:
  static constexpr uint64_t kFirstCookie = uint64_t{1} << 63;

  std::unique_ptr<fabric::Region> region_;
  uint64_t target_ = 0;
  uint64_t writes_ = 0;  // a cookie is the number of a write and its part
  std::array<std::atomic<uint32_t>, kParts> writing_ = {};
};

}  // namespace rdma_transport::collectives
