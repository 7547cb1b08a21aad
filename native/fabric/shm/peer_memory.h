// The memory that a channel's peer has shared, as it is mapped here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/shm/messages.h"
#include "fabric/shm/peer_region.h"
#include "fabric/shm/socket.h"
#include "fabric/shm/window.h"

namespace rdma_transport::fabric::shm {

// Thread-safe.
class PeerMemory {
 public:
  ~PeerMemory() { Clear(); }

  // Maps a region of `owner`, whose memory is `message`'s only descriptor. `presence` is released
  // when the memory is no longer used. The peer is not trusted: returns DataLoss if the message is
  // malformed or the region is known, ResourceExhausted if the peer shares more than the host has,
  // and the errors of host::CheckMemoryFile() and Window::Map().
  Status Add(const Message& message, const Owner& owner, std::shared_ptr<const void> presence);
  // Drops the mapping of a region, if there is one. Its memory stays mapped while it is in use.
  void Remove(uint64_t key);
  // Refuses copies from now on, because the channel has closed. Returns whether none is under way.
  bool Close();
  // Drops all mappings.
  void Clear();
  // Returns the region, or null.
  std::shared_ptr<PeerRegion> Find(uint64_t key) const;
  // Returns the mapping that contains all of `span`, or null.
  std::shared_ptr<Mapping> FindMapping(const RemoteSpan& span) const;

 private:
  Status MayAdd(const RegionMessage& region) const;

  mutable std::mutex mu_;
  std::map<uint64_t, std::shared_ptr<PeerRegion>> regions_;  // by key
  std::vector<std::shared_ptr<PeerRegion>> removed_;         // in which copies were under way
  uint64_t mapped_bytes_ = 0;
};

}  // namespace rdma_transport::fabric::shm
