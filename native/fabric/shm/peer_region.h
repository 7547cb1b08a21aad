// One region of a channel's peer, as it is mapped here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/shm/window.h"

namespace rdma_transport::fabric::shm {

// See RemoteRegion for the contract. One atomic counts the copies under way and holds the flags
// that refuse new ones, so a copy takes no lock, and the memory stays mapped until the last copy
// has ended. Thread-safe.
class PeerRegion final : public RemoteRegion {
 public:
  explicit PeerRegion(std::shared_ptr<Mapping> mapping);

  Status Read(uint64_t offset, char* destination, uint64_t length) override;
  Status Write(const char* source, uint64_t offset, uint64_t length) override;
  uint64_t length() const { return length_; }

  // Valid until Drop().
  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }
  // Why copies end.
  enum class End { kChannelClosed, kRegionReleased };
  // Refuses copies from now on. Returns whether none is under way.
  bool Close(End end);
  // Also drops the mapping, now or when the last copy ends.
  bool Drop(End end);

 private:
  Status Enter();
  void Leave();
  Status Refuse(uint64_t flags);
  void TryRelease();

  std::shared_ptr<Mapping> mapping_;
  char* const address_;
  const uint64_t length_;
  const bool writable_;
  std::atomic<uint64_t> copies_{0};  // and the flags
};

}  // namespace rdma_transport::fabric::shm
