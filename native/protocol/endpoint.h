// One task of a cluster in this process: its identity, its peers, its links, and its mailbox.
//
// The TensorFlow layer uses the protocol through this class, Peer and PendingRecv.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/secret_file.h"
#include "protocol/bootstrap.h"
#include "protocol/link.h"
#include "protocol/mailbox.h"
#include "protocol/peer.h"
#include "protocol/pending_fallbacks.h"
#include "protocol/step_aborts.h"

namespace rdma_transport {

class Runtime;

// Thread-safe. Must not outlive its runtime.
class Endpoint final : public LinkOwner {
 public:
  Endpoint(Runtime* runtime, std::string task);
  ~Endpoint() override;

  const Identity& identity() const { return identity_; }
  const Settings& settings() const;
  fabric::Device* device() const;  // null if there is no fabric; see no_fabric_reason()
  const std::string& no_fabric_reason() const;
  SecretFile* secret_file() const;
  memory::Arena* arena() const;
  memory::SlotPools* slots() const;

  // Returns the peer that a cluster calls `task` at `address` ("host:port"). The endpoint owns it.
  Peer* GetPeer(const std::string& task, const std::string& address);

  // Undoes Peer::Plan() for all owners whose names begin with `owner`.
  void Unplan(const std::string& owner);

  // Completes `recv` with the tensor that `peer` sends for this step and key, or with an error:
  // Aborted if the peer aborts the step, or the step ends or restarts here; Unavailable if the peer
  // is lost.
  void Receive(Peer* peer, int64_t step, std::string_view key,
               const std::shared_ptr<PendingRecv>& recv, const BootstrapCall& call);
  // Fails `recv` when `peer` is lost or aborts the step. No tensor completes it; `key` only
  // identifies it. To stop watching, claim `recv` and call Forget().
  void Watch(Peer* peer, int64_t step, std::string_view key,
             const std::shared_ptr<PendingRecv>& recv);
  // Removes a pending receive that its owner has claimed.
  void Forget(int64_t step, std::string_view key, const PendingRecv* recv);
  // Ends the step on this task and discards its remaining tensors.
  void EndStep(int64_t step);
  // Starts a new generation of the step. Its pending receives fail with Aborted, and peers discard
  // what this task sent for it. Tensors that peers sent stay until those peers restart the step,
  // because they may have restarted it first.
  void RestartStep(int64_t step);
  // Aborts the step: this task sends nothing more for it. Notifies all peers, also on links that
  // come up before the step ends. Pending receives there for tensors of this task fail with
  // `error`, which is opaque here. Only the first call for a step has an effect, and none after
  // EndStep().
  void AbortStep(int64_t step, std::string error);
  // Called when a RecvTensor call has fetched the tensor.
  void Fetched(int64_t step, std::string_view key) { pending_fallbacks_.Fetched(step, key); }

  // Handles a peer's bootstrap request and returns the encoded reply, which may be a refusal.
  std::string HandleBootstrap(std::string_view request);

  // Returns one entry per task, including tasks that linked to this one but are in none of its
  // clusters. If a task has several addresses, the linked one is reported, or else the last.
  std::vector<PeerStats> Stats() const;
  void ReportEdges(std::vector<EdgeReport>* edges) const;
  size_t unclaimed_tensors() const { return mailbox_.kept(); }

  // The functions below are for peers and the runtime.
  //
  // Makes `recv` fetch its tensor over gRPC. Fails it with FailedPrecondition if fallback is
  // forbidden.
  void UseGrpc(const std::string& from, const std::shared_ptr<PendingRecv>& recv,
               const std::string& reason);
  std::shared_ptr<Link> NewLink(const std::string& task);
  Traffic* TrafficWith(const std::string& task);
  void AddLink(const std::shared_ptr<Link>& link, Peer* peer);
  void RemoveLink(const std::shared_ptr<Link>& link);
  std::vector<std::shared_ptr<Link>> LinksTo(const std::string& task) const;
  PendingFallbacks& pending_fallbacks() { return pending_fallbacks_; }
  bool Tick(Nanos now, bool excuse);

  // LinkOwner:
  void ArmTimer() override;
  void OnLinkUp(const std::shared_ptr<Link>& link) override;
  void OnLinkDown(const std::shared_ptr<Link>& link, const Status& status, bool was_up) override;
  void OnLinkReleased(const std::shared_ptr<Link>& link) override;
  void OnArrival(int64_t step, const KeyId& key, Arrival arrival) override;
  void OnRestart(Link* link, int64_t step, uint32_t generation) override;
  void OnRestarted(Link* link, int64_t step) override;
  void OnAbort(Link* link, StepAbort abort) override;
  void OnLost(const std::shared_ptr<Link>& link, std::vector<UnackedTensor> tensors) override;

 private:
  // Returns ResourceExhausted if the remote task may not open one more link now.
  Status Admit(const std::string& task) const;
  // Returns true if `recv` now waits in the mailbox. Otherwise it was completed: with the tensor,
  // or with an error because the tensor will not come.
  bool Enter(const Peer& peer, int64_t step, std::string_view key,
             const std::shared_ptr<PendingRecv>& recv);
  bool Hold(Peer* peer, int64_t step, std::string_view key,
            const std::shared_ptr<PendingRecv>& recv);
  void ReleaseHeld(const Traffic* traffic, int64_t step);
  void Deliver(Arrival arrival, const std::shared_ptr<PendingRecv>& recv);
  static void FailAborted(std::list<std::shared_ptr<PendingRecv>> recvs, const std::string& task,
                          const std::string& error);
  std::vector<std::shared_ptr<Link>> AllLinks() const;
  void ApplyAborts();
  void ProbeLinks(const Identity& remote);
  void KeepInUse(const std::shared_ptr<Link>& link);
  std::vector<Peer*> PeersNamed(const std::string& task) const;
  PeerStats StatsOfCaller(const Traffic* traffic) const;

  Runtime* const runtime_;
  const Identity identity_;
  Mailbox mailbox_;
  PendingFallbacks pending_fallbacks_;
  StepAborts aborts_;

  // A pending receive for a step that this task restarted. It is held until the peer has confirmed
  // the restart: until then, tensors in the mailbox, and the peer's abort, may belong to the
  // previous generation.
  struct Held {
    Peer* peer;
    int64_t step;
    std::string key;
    std::shared_ptr<PendingRecv> recv;
  };
  // Returns whether `holds` is true of every link to that peer that is up.
  bool AllUpLocked(const Traffic* traffic, const std::function<bool(const Link&)>& holds) const;
  bool ConfirmedLocked(const Traffic* traffic, int64_t step) const;

  // An abort that a peer sent. The peer sends it on all its links, and it takes effect when it has
  // arrived on all of them: on each link it follows what was sent earlier, which must not be lost.
  // A task's tensors and its releases of the peer's tensors use different links.
  struct ComingAbort {
    StepAbort abort;
    Identity from;
    const Traffic* traffic;
    Nanos since;
    std::set<const Link*> links;  // on which it has arrived
  };
  bool HasComeLocked(const ComingAbort& coming) const;
  std::atomic<bool> restarted_{false};  // true once any step was restarted

  std::deque<ComingAbort> coming_aborts_;  // polling thread only

  mutable std::mutex mu_;
  std::vector<Held> held_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Peer>> peers_;
  std::map<std::string, Traffic*> traffic_;       // by task
  std::map<std::shared_ptr<Link>, Peer*> links_;  // null if the remote task opened the link
  // Closed links whose peers may still read and write here, until OnLinkReleased().
  std::vector<std::shared_ptr<Link>> in_use_;
};

}  // namespace rdma_transport
