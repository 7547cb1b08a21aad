// What the ends of a mesh have in common.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/letter.h"
#include "collectives/mesh_pool.h"
#include "collectives/progress.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

// An end of a mesh, as a wait sees it.
class Watched {
 public:
  virtual ~Watched() = default;
  // Called about every kCheckInterval, or more often, while a call waits for the member. Pings a
  // remote one that is silent, and closes the channel after the timeout.
  virtual void CheckAlive() = 0;
};

// A region, and its device, which must outlive it.
struct OwnRegion {
  std::shared_ptr<fabric::Device> device;
  std::unique_ptr<fabric::Region> region;
};

// Why a member sends no more messages.
struct Absence {
  bool left = false;  // it has closed its end in order
  Status lost;        // its channel has closed
};

// What the ends of a mesh share. Outlives the mesh while a callback runs, and while a request
// exists.
struct MeshState {
  mutable std::mutex
      mu;  // not held in calls of channels; guards the peers' fields, too, but not the hook
  mutable std::condition_variable changed;
  // These do not change.
  int rank = 0;
  Nanos peer_timeout = 0;   // how long a remote member may be silent
  Progress::Helper helper;  // may be null
  std::shared_ptr<const OwnRegion> own;
  std::shared_ptr<BlockPool> pool;
  std::vector<std::weak_ptr<Watched>> ends;  // by rank; null for this member

  struct SharedRegion {
    uint64_t length = 0;
    bool placed = false;  // remote members may write there
  };
  std::map<uint64_t, SharedRegion> shared;  // this member's other regions, by key
  std::shared_ptr<const void> arrays;       // of Mesh::KeepArrays()
  Inbox inbox;
  std::vector<Absence> absent;  // by rank
  std::vector<int> names;       // of ranks in messages; empty: their numbers
  int copying = 0;              // pieces and messages that are being copied for calls

  std::mutex hook_mu;  // held while the hook runs; taken without `mu`
  std::function<void()> lost_hook;

  // As Wait(), but polls the device first. For waits that the peer is likely to end soon.
  Status WaitPolling(std::unique_lock<std::mutex>* lock, const Patience& patience,
                     const std::function<bool()>& done, const std::function<void()>& check,
                     const char* what) const;
  // Waits until `done` returns true. Called with the lock, which is released while it waits.
  // `check` is called without it every kCheckInterval.
  Status Wait(std::unique_lock<std::mutex>* lock, const Patience& patience,
              const std::function<bool()>& done, const std::function<void()>& check,
              const char* what) const;

  // Returns why no message from `source`, which may be kAny, can come any more. From any member:
  // one that was lost may be the one that was to send, one that has left is not. Requires the lock.
  Status Gone(int source) const;
  // Ends the posted receives whose messages cannot come any more. Requires the lock.
  void EndReceives();
  // Receives a message that is here, or queues a copy of it; sets `received` to which. Called
  // without the lock.
  Status Deliver(const Envelope& envelope, std::string_view bytes, bool* received);
  // Ends a call. Requires the lock.
  void End(MessageCall* call, const Status& status) const;
  // Looks for a silent member; `peer` may be kAny. Called without the lock.
  void CheckAlive(int peer) const;
};

}  // namespace rdma_transport::collectives
