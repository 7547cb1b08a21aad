#include "fabric/shm/peer_region.h"

#include <cstring>
#include <utility>

namespace rdma_transport::fabric::shm {
namespace {

// Flags above the number of copies under way.
constexpr uint64_t kChannelClosed = uint64_t{1} << 63;
constexpr uint64_t kRegionReleased = uint64_t{1} << 62;
constexpr uint64_t kDropped = uint64_t{1} << 61;   // the last copy drops the mapping
constexpr uint64_t kUnmapped = uint64_t{1} << 60;  // one thread has begun to
constexpr uint64_t kCount = kUnmapped - 1;

constexpr uint64_t FlagOf(PeerRegion::End end) {
  return end == PeerRegion::End::kChannelClosed ? kChannelClosed : kRegionReleased;
}

bool Inside(uint64_t offset, uint64_t length, uint64_t total) {
  return offset <= total && length <= total - offset;
}

Status Outside() {
  return Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
}

}  // namespace

PeerRegion::PeerRegion(std::shared_ptr<Mapping> mapping)
    : mapping_(std::move(mapping)),
      address_(const_cast<char*>(mapping_->address())),
      length_(mapping_->length()),
      writable_(mapping_->writable_address() != nullptr) {}

Status PeerRegion::Read(uint64_t offset, char* destination, uint64_t length) {
  if (!Inside(offset, length, length_)) return Outside();
  RDMA_RETURN_IF_ERROR(Enter());
  std::memcpy(destination, address_ + offset, length);
  Leave();
  return OkStatus();
}

Status PeerRegion::Write(const char* source, uint64_t offset, uint64_t length) {
  if (!Inside(offset, length, length_)) return Outside();
  if (!writable_) {
    return Status(Code::kPermissionDenied, "a write to memory that the peer allows to read only");
  }
  RDMA_RETURN_IF_ERROR(Enter());
  std::memcpy(address_ + offset, source, length);
  Leave();
  return OkStatus();
}

// Any flag refuses the copy. All changes are to one atomic, so a copy that was let in is counted
// when a flag is set.
inline Status PeerRegion::Enter() {
  const uint64_t before = copies_.fetch_add(1, std::memory_order_acquire);
  return before <= kCount ? OkStatus() : Refuse(before);
}

// Releases the bytes that it copied to the thread that finds no copy under way.
inline void PeerRegion::Leave() {
  if (copies_.fetch_sub(1, std::memory_order_acq_rel) > kCount) TryRelease();
}

Status PeerRegion::Refuse(uint64_t flags) {
  Leave();
  if ((flags & kChannelClosed) != 0) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  return Status(Code::kNotFound, "the peer has released the region");
}

bool PeerRegion::Close(End end) {
  return (copies_.fetch_or(FlagOf(end), std::memory_order_acq_rel) & kCount) == 0;
}

bool PeerRegion::Drop(End end) {
  const uint64_t before = copies_.fetch_or(FlagOf(end) | kDropped, std::memory_order_acq_rel);
  TryRelease();
  return (before & kCount) == 0;
}

// Copies that are refused also count for a moment, so several threads may find the count at zero.
void PeerRegion::TryRelease() {
  uint64_t seen = copies_.load(std::memory_order_acquire);
  while ((seen & kCount) == 0 && (seen & kDropped) != 0 && (seen & kUnmapped) == 0) {
    if (copies_.compare_exchange_weak(seen, seen | kUnmapped, std::memory_order_acq_rel)) {
      mapping_.reset();
      return;
    }
  }
}

}  // namespace rdma_transport::fabric::shm
