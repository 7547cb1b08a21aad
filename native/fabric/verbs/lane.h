// Large transfers of a channel, which start piece by piece, and the notifications that must follow
// them. A small transfer thus never waits behind more than a window of bytes.
//
// A queue pair does its work in order, so a transfer that is posted as a whole delays all work
// that is posted after it, for as long as its bytes take.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <variant>

#include "fabric/fabric.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-compatible; guarded by the channel's lock.
class Lane {
 public:
  // Pieces that may be under way: while one is on the wire, the next one must be posted.
  static constexpr uint64_t kPieces = 2;
  // However many lanes share the port.
  static constexpr uint64_t kMinPiece = uint64_t{32} << 10;
  // Returns the bytes of a piece for each queue pair that carries a share of it, on a port of this
  // rate. The pieces under way take about 130 us on the wire, which is longer than their
  // completions need, and not much longer than a small transfer takes alone.
  static uint64_t PieceFor(double gigabits_per_second) {
    const double bytes = gigabits_per_second * (1e9 / 8) * 130e-6 / static_cast<double>(kPieces);
    return static_cast<uint64_t>(std::clamp(bytes, 64.0 * 1024, 1024.0 * 1024)) / 4096 * 4096;
  }
  // Returns the bytes of a piece, at most `alone`, in one of so many lanes that share the port. All
  // of them together have as much under way as one alone, unless there are very many.
  static uint64_t PieceAmong(int lanes, uint64_t alone) {
    const uint64_t share = alone / static_cast<uint64_t>(std::max(lanes, 1)) / 4096 * 4096;
    return std::max(share, std::min(alone, kMinPiece));
  }

  // `waiting` counts the lanes of the device, for one direction, in which transfers wait. It must
  // outlive this.
  explicit Lane(std::atomic<int>* waiting) : waiting_(waiting) {}
  ~Lane() { Drop(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // What has not started yet of a transfer. `work` describes it, with the local address of `rest`.
  struct Transfer {
    Work work;
    RemoteSpan rest;
    LocalEnds ends = {};
  };
  struct Note {
    RecordKind kind = RecordKind::kNotification;
    std::string bytes;
    uint64_t number = 0;
    bool signaled = false;
    bool ordered = true;  // nothing may overtake it
  };

  // Returns whether a transfer is so large that it must pass through a lane.
  static bool Takes(uint64_t length, uint64_t piece) { return length > piece / 4; }

  bool empty() const { return items_.empty(); }
  // Returns whether a notification that follows `after` must wait here.
  bool Holds(After after) const;
  void Add(const Transfer& transfer);
  void Add(Note note);

  // The first item, which is one of the two; the other is null.
  const Note* note() const { return std::get_if<Note>(&items_.front()); }
  Transfer* transfer() { return std::get_if<Transfer>(&items_.front()); }
  void Pop();

  // Returns the length of the next piece of the first transfer, which is then under way, or 0 if it
  // must wait for the end of others. `piece` is in bytes.
  uint64_t TakePiece(uint64_t piece);
  // A share of a piece has ended.
  void OnEnded(uint64_t bytes) { under_way_ -= std::min(bytes, under_way_); }

  uint64_t note_bytes() const { return note_bytes_; }
  void Drop();

 private:
  void CountTransfers(int more);

  std::atomic<int>* const waiting_;
  size_t transfers_ = 0;  // among the items
  std::deque<std::variant<Transfer, Note>> items_;
  size_t ordered_ = 0;  // notes among them that nothing may overtake
  uint64_t note_bytes_ = 0;
  uint64_t under_way_ = 0;  // bytes
};

}  // namespace rdma_transport::fabric::verbs
