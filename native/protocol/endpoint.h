// One task of a cluster in this process: its identity, its peers, its links, and the mailbox.
//
// This is what the TensorFlow layer sees of the protocol, together with Peer and PendingRecv.
#pragma once

#include <atomic>
#include <deque>
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

// Thread-safe. Lives until its runtime ends.
class Endpoint final : public LinkOwner {
 public:
  Endpoint(Runtime* runtime, std::string task);
  ~Endpoint() override;

  const Identity& identity() const { return identity_; }
  const Settings& settings() const;
  fabric::Device* device() const;  // null: no fabric, and no_fabric_reason() says why
  const std::string& no_fabric_reason() const;
  SecretFile* secret_file() const;
  memory::Arena* arena() const;
  memory::SlotPools* slots() const;

  // The peer that a cluster calls `task` and finds at `address` ("host:port"); lives as long as
  // this endpoint.
  Peer* GetPeer(const std::string& task, const std::string& address);

  // Ends what Peer::Plan() began for the owners whose names begin with `owner`.
  void Unplan(const std::string& owner);

  // Completes `recv` with the tensor of that step and key, which `peer` sends; with the error of
  // the peer's AbortStep() if that comes first.
  void Receive(Peer* peer, int64_t step, std::string_view key,
               const std::shared_ptr<PendingRecv>& recv, const BootstrapCall& call);
  // For a pending receive that no tensor will complete: it gets the error when `peer` is lost or
  // aborts the step, if its owner does not claim and Forget() it before. `key` is for that alone.
  void Watch(Peer* peer, int64_t step, std::string_view key,
             const std::shared_ptr<PendingRecv>& recv);
  // Forgets a pending receive that its owner has claimed.
  void Forget(int64_t step, std::string_view key, const PendingRecv* recv);
  // The step is over on this task: what is left of it is thrown away.
  void EndStep(int64_t step);
  // Begins a step anew, in a new generation. Whoever waits in it fails, and peers throw away what
  // this task sent for it. What peers have sent stays, until they restart the step themselves: they
  // may have done so before.
  void RestartStep(int64_t step);
  // The step failed on this task, which sends nothing more for it. All peers are notified, also
  // those whose links come up before the step ends: whoever waits there for a tensor of this task
  // gets `error`. Only the first call for a step counts, and none after its end.
  void AbortStep(int64_t step, std::string error);
  // A RecvTensor call has fetched it.
  void Fetched(int64_t step, std::string_view key) { pending_fallbacks_.Fetched(step, key); }

  // Answers a peer's bootstrap request.
  std::string HandleBootstrap(std::string_view request);

  // One for each task: of several addresses of one, the one that is linked, or else the last. Also
  // for those that no cluster of this task names, but that linked themselves to it.
  std::vector<PeerStats> Stats() const;
  void ReportEdges(std::vector<EdgeReport>* edges) const;
  size_t unclaimed_tensors() const { return mailbox_.kept(); }

  // For peers and the runtime.
  // Sends the pending receive to TensorFlow's transport, or fails it where that is forbidden.
  void UseGrpc(const std::string& from, const std::shared_ptr<PendingRecv>& recv,
               const std::string& reason);
  std::shared_ptr<Link> NewLink(const std::string& task);
  Traffic* TrafficWith(const std::string& task);
  void AddLink(const std::shared_ptr<Link>& link, Peer* peer);
  void RemoveLink(const std::shared_ptr<Link>& link);
  std::vector<std::shared_ptr<Link>> LinksTo(const std::string& task) const;
  PendingFallbacks& pending_fallbacks() { return pending_fallbacks_; }
  bool Tick(Nanos now, bool excuse);

  // LinkOwner.
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
  // Whether one more caller of the bootstrap may make this task open a channel.
  Status Admit(const std::string& task) const;
  // False: the tensor was there, or will never be, and the pending receive has it, or the error.
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

  // Waits for a tensor of a step that this task restarted, until the peer has confirmed that: what
  // lies in the mailbox may still be of the peer's former generation, and so may its abort.
  struct Held {
    Peer* peer;
    int64_t step;
    std::string key;
    std::shared_ptr<PendingRecv> recv;
  };
  bool ConfirmedLocked(const Traffic* traffic, int64_t step) const;

  // An abort of a peer, which sends it on all its links. It counts when it has come on all: on each
  // it comes behind what was sent there before, and nothing of that may be lost. The tensors of a
  // task and its releases of the peer's tensors take different links.
  struct ComingAbort {
    StepAbort abort;
    Identity from;
    const Traffic* traffic;
    Nanos since;
    std::set<const Link*> links;  // on which it has come
  };
  bool HasComeLocked(const ComingAbort& coming) const;
  std::atomic<bool> restarted_{false};  // any step ever

  std::deque<ComingAbort> coming_aborts_;  // the polling thread's

  mutable std::mutex mu_;
  std::vector<Held> held_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Peer>> peers_;
  std::map<std::string, Traffic*> traffic_;       // by task
  std::map<std::shared_ptr<Link>, Peer*> links_;  // null: the remote task asked for it
  // That ended while their peers live, and may still read and write here, until OnLinkReleased().
  std::vector<std::shared_ptr<Link>> in_use_;
};

}  // namespace rdma_transport
