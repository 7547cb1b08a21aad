// Large transfers of a channel, which start piece by piece, and the notifications that must follow
// them. A small transfer thus never waits behind more than a window of bytes.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>

#include "fabric/fabric.h"
#include "fabric/striped/address.h"
#include "fabric/striped/wire.h"

namespace rdma_transport::fabric::striped {

// Thread-compatible; guarded by the channel's lock.
class Lane {
 public:
  // However many lanes share the port.
  static constexpr uint64_t kMinPiece = uint64_t{32} << 10;
  // Returns the bytes of a piece, at most `alone`, in one of so many lanes that share the port. All
  // of them together have as much under way as one alone, unless there are very many.
  static uint64_t PieceAmong(int lanes, uint64_t alone) {
    const uint64_t share = alone / static_cast<uint64_t>(std::max(lanes, 1)) / 4096 * 4096;
    return std::max(share, std::min(alone, kMinPiece));
  }
  // Returns whether a transfer is so large that it must pass through a lane.
  static bool Takes(uint64_t length, uint64_t piece) { return length > piece / 4; }

  // `waiting` counts the lanes of the device, for one direction, in which transfers wait. It must
  // outlive this.
  explicit Lane(std::atomic<int>* waiting) : waiting_(waiting) {}
  ~Lane() { Drop(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // What has not started yet of a transfer. `local` belongs to `rest`.
  struct Transfer {
    uint64_t cookie = 0;
    uint32_t index = 0;  // among the channel's transfers
    char* local = nullptr;
    RemoteSpan rest;
    uint64_t most = ~uint64_t{0};                  // bytes of a piece
    uint32_t rails = 0;                            // a bit for each that may carry it; 0: not known
    std::array<uint64_t, kMaxRails> carried = {};  // bytes by each
    bool again = false;                            // a rail that failed has lost it
  };
  struct Note {
    RecordKind kind = RecordKind::kNotification;
    std::string bytes;
    Urgency urgency = Urgency::kWake;
    uint64_t number = 0;  // the user's
    After after = After::Everything();
  };

  bool empty() const { return items_.empty(); }
  // Returns whether a notification that follows `after` must wait here.
  bool Holds(After after) const;
  void Add(const Transfer& transfer) { Insert(items_.end(), transfer); }
  void Add(Note note) { Insert(items_.end(), std::move(note)); }
  // In front of all others but those that were added like this before.
  template <typename Item>
  void AddUrgent(Item item) {
    Insert(items_.begin() + static_cast<ptrdiff_t>(urgent_), std::move(item));
    ++urgent_;
  }

  // The first item, which is one of the two; the other is null.
  const Note* note() const { return std::get_if<Note>(&items_.front()); }
  Transfer* transfer() { return std::get_if<Transfer>(&items_.front()); }
  void Pop();
  // The rails have changed.
  void ResetRails();

  uint64_t note_bytes() const { return note_bytes_; }
  void Drop();

 private:
  using Items = std::deque<std::variant<Transfer, Note>>;

  void Insert(Items::iterator place, const Transfer& transfer);
  void Insert(Items::iterator place, Note note);
  void CountTransfers(int more);

  std::atomic<int>* const waiting_;
  Items items_;
  size_t transfers_ = 0;  // among the items
  size_t urgent_ = 0;     // of AddUrgent()
  size_t ordered_ = 0;    // notes among them that nothing may overtake
  uint64_t note_bytes_ = 0;
};

}  // namespace rdma_transport::fabric::striped
