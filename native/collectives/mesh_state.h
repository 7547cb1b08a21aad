// What the ends of a mesh have in common.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/letter.h"
#include "collectives/progress.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

// A region, and its device, which must outlive it.
struct OwnRegion {
  std::shared_ptr<fabric::Device> device;
  std::unique_ptr<fabric::Region> region;
};

// What the ends of a mesh share. Outlives the mesh while a callback runs.
struct MeshState {
  mutable std::mutex
      mu;  // not held in calls of channels; guards the peers' fields, too, but not the hook
  mutable std::condition_variable changed;
  Nanos peer_timeout = 0;                // how long a remote member may be silent
  std::shared_ptr<const OwnRegion> own;  // does not change
  std::map<uint64_t, uint64_t> shared;   // keys and lengths of this member's other regions
  std::deque<Letter> letters;

  std::mutex hook_mu;  // held while the hook runs; taken without `mu`
  std::function<void()> lost_hook;

  // Waits until `done` returns true. Called with the lock, which is released while it waits.
  // `check` is called without it every kCheckInterval.
  Status Wait(std::unique_lock<std::mutex>* lock, const Patience& patience,
              const std::function<bool()>& done, const std::function<void()>& check,
              const char* what) const;
};

}  // namespace rdma_transport::collectives
