// The steps that failed: on this task, so that its peers can be notified, and on peers, so that
// nobody waits for a tensor that will not come.
//
// Most steps run once. A step that runs again under the same number (collectives of eager code do)
// is restarted by each task on its own, which starts a new generation of it there. An abort names
// the generations of both tasks, so that one that was on its way when either task restarted the
// step does not end the new generation.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/counters.h"

namespace rdma_transport {

// One task aborted a step, as it notifies one peer of it.
struct StepAbort {
  int64_t step = 0;
  uint32_t generation = 0;       // of the step, on the task that aborted it
  uint32_t peer_generation = 0;  // of the step, on the peer, as far as that task knew
  std::string error;             // opaque: from the layer above, for the layer above
};

// Thread-safe. Bounded: of each task the last aborts and restarts are remembered (kRemembered).
// A peer is named by its Traffic, which lives as long as the process.
class StepAborts {
 public:
  static constexpr size_t kRemembered = 1024;

  // --- This task.
  // False: it had aborted this generation of the step before.
  bool Abort(int64_t step, std::string error);
  // What `peer` must be notified of: for one step, and for all.
  std::optional<StepAbort> For(const Traffic* peer, int64_t step) const;
  std::vector<StepAbort> AllFor(const Traffic* peer) const;
  // The step is over on this task.
  void End(int64_t step);
  // Starts a new generation of the step here, and returns it.
  uint32_t Restart(int64_t step);
  // Whether this task or a peer restarted the step.
  bool EverRestarted(int64_t step) const;
  // The steps that were restarted here, with their generations.
  std::vector<std::pair<int64_t, uint32_t>> Restarted() const;

  // --- Peers. `incarnation` tells one life of a peer from the next.
  // A link to this life of the peer came up: what an earlier one aborted counts no more.
  void OnPeerUp(const Traffic* peer, uint64_t incarnation);
  // False: it concerns a generation, or a life of the peer, that is over.
  bool OnPeerAbort(const Traffic* peer, uint64_t incarnation, const StepAbort& abort);
  void OnPeerRestart(const Traffic* peer, uint64_t incarnation, int64_t step, uint32_t generation);
  // What the peer's abort of the step said; nothing if it did not abort it.
  std::optional<std::string> ErrorOf(const Traffic* peer, int64_t step) const;

 private:
  // A step on one task.
  struct State {
    uint32_t generation = 0;
    bool aborted = false;
    std::string error;
  };
  struct Step {
    State own;
    std::map<const Traffic*, State> peers;
  };
  struct Memory {
    uint64_t incarnation = 0;
    std::deque<int64_t> steps;  // whose state is kept, the oldest first
  };

  State& RememberLocked(const Traffic* task, int64_t step);
  void MakeRoomLocked(const Traffic* task);
  bool RestartedLocked(const Traffic* task, int64_t step) const;
  void ForgetLocked(const Traffic* task, int64_t step);
  StepAbort ForLocked(const Traffic* peer, int64_t step, const Step& found) const;

  mutable std::mutex mu_;
  std::unordered_map<int64_t, Step> steps_;
  std::map<const Traffic*, Memory> memories_;  // null: this task
};

}  // namespace rdma_transport
