// What the one-sided operations of a channel over a card have in common, whatever moves the bytes:
// the memory of the peer that they may access, and which of them have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric::host {

// More than any arena has slabs.
constexpr size_t kMaxRegions = 16384;

struct TransferEnd {
  uint64_t cookie;
  Status status;
};

// `Record` describes a region on the wire, with its key and length, and whether it is writable.
// Thread-compatible.
template <typename Record>
class TransferBase {
 public:
  // Adds a region that the peer shared. Returns ResourceExhausted if it has shared too many,
  // DataLoss if the bytes are no record.
  Status AddRegion(const Record& region) {
    if (regions_.size() >= kMaxRegions && regions_.count(region.key) == 0) {
      return Status(Code::kResourceExhausted, "the peer announces more than " +
                                                  std::to_string(kMaxRegions) + " memory regions");
    }
    regions_[region.key] = region;
    return OkStatus();
  }
  Status AddRegion(std::string_view bytes) {
    Record region;
    RDMA_RETURN_IF_ERROR(Read(bytes, &region));
    return AddRegion(region);
  }
  // Removes the region with this key. Returns DataLoss if the bytes are no key.
  Status RemoveRegion(std::string_view bytes) {
    uint64_t key = 0;
    RDMA_RETURN_IF_ERROR(Read(bytes, &key));
    regions_.erase(key);
    return OkStatus();
  }

  // Finds the region of a span of the peer's memory, if `region` is not null. Returns
  // InvalidArgument if the span is not in a shared region, PermissionDenied for a write to a
  // read-only one.
  Status Check(const RemoteSpan& span, Access access, const Record** region = nullptr) const {
    const auto found = regions_.find(span.key);
    if (found == regions_.end() || span.offset > found->second.length ||
        span.length > found->second.length - span.offset) {
      return Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
    }
    if (access == Access::kRemoteReadWrite && found->second.writable == 0) {
      return Status(Code::kPermissionDenied, "a write to memory that the peer only lets be read");
    }
    if (region != nullptr) *region = &found->second;
    return OkStatus();
  }

  // An operation has ended, or was not started.
  void End(uint64_t cookie, const Status& status) { ended_.push_back({cookie, status}); }
  // Returns the operations that have ended since the last call.
  std::vector<TransferEnd> TakeEnded() { return std::exchange(ended_, {}); }

 private:
  template <typename Value>
  static Status Read(std::string_view bytes, Value* value) {
    if (bytes.size() != sizeof(*value)) {
      return Status(Code::kDataLoss, "a malformed description of a region");
    }
    std::memcpy(value, bytes.data(), sizeof(*value));
    return OkStatus();
  }

  std::map<uint64_t, Record> regions_;  // by key
  std::vector<TransferEnd> ended_;
};

}  // namespace rdma_transport::fabric::host
