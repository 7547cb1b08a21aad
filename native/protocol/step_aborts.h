// The steps that failed on this task, of which its peers are notified, and on peers, so that no
// operation waits for a tensor that will not come.
//
// Most steps run once. Some run again under the same number, as collectives of eager code do. Each
// task restarts such a step on its own, which starts a new generation of it there. An abort names
// the generations of both tasks, so that an abort in flight while either task restarts the step
// does not end the new generation.
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

#include "protocol/peer_id.h"

namespace rdma_transport {

// One task's abort of a step, as sent to one peer.
struct StepAbort {
  int64_t step = 0;
  uint32_t generation = 0;       // of the step on the aborting task
  uint32_t peer_generation = 0;  // of the step on the peer, as known to the aborting task
  std::string error;             // opaque: comes from and goes to the layer above
};

// Thread-safe. Remembers at most kRemembered aborted or restarted steps of each task.
class StepAborts {
 public:
  static constexpr size_t kRemembered = 1024;

  // Returns false if this task had already aborted this generation of the step.
  bool Abort(int64_t step, std::string error);
  // Returns the aborts of which `peer` must be notified: of one step, or of all.
  std::optional<StepAbort> For(PeerId peer, int64_t step) const;
  std::vector<StepAbort> AllFor(PeerId peer) const;
  // Ends the step on this task and forgets it.
  void End(int64_t step);
  // Starts a new generation of the step on this task and returns it.
  uint32_t Restart(int64_t step);
  // Returns whether this task or a peer restarted the step.
  bool EverRestarted(int64_t step) const;
  // Returns the steps that this task restarted, with their generations.
  std::vector<std::pair<int64_t, uint32_t>> Restarted() const;

  // --- Peers. `incarnation` changes when a peer restarts.
  // A link to this incarnation of the peer came up: forgets what earlier ones aborted.
  void OnPeerUp(PeerId peer, uint64_t incarnation);
  // Returns false if the abort is of an earlier generation or another incarnation.
  bool OnPeerAbort(PeerId peer, uint64_t incarnation, const StepAbort& abort);
  void OnPeerRestart(PeerId peer, uint64_t incarnation, int64_t step, uint32_t generation);
  // Returns the error with which the peer aborted the step, or nullopt if it did not.
  std::optional<std::string> ErrorOf(PeerId peer, int64_t step) const;

 private:
  // The state of a step on one task.
  struct State {
    uint32_t generation = 0;
    bool aborted = false;
    std::string error;
  };
  struct Step {
    State own;
    std::map<PeerId, State> peers;
  };
  struct Memory {
    uint64_t incarnation = 0;
    std::deque<int64_t> steps;  // with state, oldest first
  };

  State& RememberLocked(PeerId task, int64_t step);
  void MakeRoomLocked(PeerId task);
  bool RestartedLocked(PeerId task, int64_t step) const;
  void ForgetLocked(PeerId task, int64_t step);
  StepAbort ForLocked(PeerId peer, int64_t step, const Step& found) const;

  mutable std::mutex mu_;
  std::unordered_map<int64_t, Step> steps_;
  std::map<PeerId, Memory> memories_;  // null is this task
};

}  // namespace rdma_transport
