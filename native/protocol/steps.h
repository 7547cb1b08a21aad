// The receiving side of one task, by step: arrived tensors, pending receives, aborts and restarts.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/fallback.h"
#include "protocol/links.h"
#include "protocol/mailbox.h"
#include "protocol/step_aborts.h"

namespace rdma_transport {

// Thread-safe, except where noted. Must not outlive its arguments.
//
// A pending receive is completed with Aborted if the peer aborts the step, or if the step ends or
// restarts here.
class Steps {
 public:
  Steps(const Links* links, const Fallback* fallback) : links_(links), fallback_(fallback) {}

  // Completes `recv` with the tensor that the peer sends for this step and key. Returns false if
  // that has happened, and true if `recv` still waits. The caller then makes it fail with the peer.
  bool Receive(PeerId peer, int64_t step, std::string_view key,
               const std::shared_ptr<PendingRecv>& recv);
  // Removes a pending receive that its owner has claimed.
  void Remove(int64_t step, std::string_view key, const PendingRecv* recv);

  // See Endpoint.
  void End(int64_t step);
  void Restart(int64_t step);
  void Abort(int64_t step, std::string error);

  size_t unclaimed_tensors() const { return mailbox_.kept(); }

  // Events of links. Polling thread only.
  void OnArrival(int64_t step, const KeyId& key, Arrival arrival);
  // Returns true if Tick() must be called.
  bool OnAbort(Link* link, StepAbort abort);
  void OnRestart(Link* link, int64_t step, uint32_t generation);
  void OnRestarted(const Link& link, int64_t step) { ReleaseHeld(link.peer(), step); }
  void OnLinkUp(Link* link);
  // The link is no longer in the table.
  void OnLinkDown(const Link& link);
  // Applies aborts that have waited long enough. Returns true if it must be called again.
  bool Tick();

 private:
  // A pending receive for a step that this task restarted. It is held until the peer has confirmed
  // the restart: until then, tensors in the mailbox, and the peer's abort, may belong to the
  // previous generation.
  struct Held {
    PeerId peer;
    int64_t step;
    std::string key;
    std::shared_ptr<PendingRecv> recv;
  };
  // An abort that a peer sent. The peer sends it on all its links, and it takes effect when it has
  // arrived on all of them: on each link it follows what was sent earlier, which must not be lost.
  // If two tasks do not share one link, tensors and the releases of tensors use different ones.
  struct ComingAbort {
    StepAbort abort;
    uint64_t incarnation;
    PeerId peer;
    Nanos since;
    std::set<const Link*> links;  // on which it has arrived
  };

  bool Hold(PeerId peer, int64_t step, std::string_view key,
            const std::shared_ptr<PendingRecv>& recv);
  void ReleaseHeld(PeerId peer, int64_t step);
  bool Confirmed(PeerId peer, int64_t step) const;
  bool Enter(PeerId peer, int64_t step, std::string_view key,
             const std::shared_ptr<PendingRecv>& recv);
  void Deliver(Arrival arrival, const std::shared_ptr<PendingRecv>& recv);
  bool HasCome(const ComingAbort& coming) const;
  void Apply(const ComingAbort& come);

  const Links* const links_;
  const Fallback* const fallback_;
  Mailbox mailbox_;
  StepAborts aborts_;
  std::deque<ComingAbort> coming_aborts_;  // polling thread only

  std::atomic<bool> restarted_{false};  // true once any step was restarted
  std::mutex mu_;                       // acquired before locks of links
  std::vector<Held> held_;
};

}  // namespace rdma_transport
