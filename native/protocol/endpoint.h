// One task of a cluster in this process: its identity, its peers, its links, and its steps.
//
// The TensorFlow layer uses the protocol through this class, Peer and PendingRecv. Calls go down:
// Endpoint, Peer, Link, fabric. Events of links come up here, and this class hands them on.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/acceptor.h"
#include "protocol/bootstrap.h"
#include "protocol/fallback.h"
#include "protocol/links.h"
#include "protocol/peer.h"
#include "protocol/runtime.h"
#include "protocol/steps.h"

namespace rdma_transport {

// Serves the calls of a task's worker service that come over links.
class CallHandler {
 public:
  virtual ~CallHandler() = default;
  // Answers the call, now or later.
  virtual void OnCall(std::shared_ptr<IncomingCall> call) = 0;
};

// Thread-safe. Must not outlive its runtime.
class Endpoint final : public LinkOwner, public LocalTask {
 public:
  Endpoint(Runtime* runtime, std::string task);
  ~Endpoint() override;

  const Identity& identity() const { return identity_; }
  const Settings& settings() const { return runtime_->settings(); }
  memory::Arena* arena() const { return runtime_->arena(); }
  memory::SlotPools* slots() const { return runtime_->slots(); }

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
  // identifies it. To stop watching, claim `recv` and call RemoveRecv().
  void Watch(Peer* peer, int64_t step, std::string_view key,
             const std::shared_ptr<PendingRecv>& recv);
  // Removes a pending receive that its owner has claimed.
  void RemoveRecv(int64_t step, std::string_view key, const PendingRecv* recv) {
    steps_.Remove(step, key, recv);
  }
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
  void AbortStep(int64_t step, std::string error) { steps_.Abort(step, std::move(error)); }
  // Called when a call of gRPC has fetched the tensor, and not when it begins to wait for it.
  void Fetched(int64_t step, std::string_view key) { fallback_.Fetched(step, key); }

  // Makes `handler` answer the calls of peers, on the polling thread; it must not block. Null: they
  // are refused, and come by gRPC.
  void SetCallHandler(CallHandler* handler) { call_handler_.store(handler); }

  // Handles a peer's bootstrap request and returns the encoded reply, which may be a refusal.
  std::string HandleBootstrap(std::string_view request) { return acceptor_.Answer(request); }

  Links& links() { return links_; }
  // Returns one entry per task, including tasks that linked to this one but are in none of its
  // clusters. If a task has several addresses, the linked one is reported, or else the last.
  std::vector<PeerStats> Stats() const;
  void ReportEdges(std::vector<EdgeReport>* edges) const;
  size_t unclaimed_tensors() const { return steps_.unclaimed_tensors(); }

  // LocalTask:
  bool Tick(Nanos now, bool suspended) override;
  TaskReport Report() const override;

  // LinkOwner:
  void ArmTimer() override { runtime_->ArmTimer(); }
  void OnLinkUp(const std::shared_ptr<Link>& link) override;
  void OnLinkDown(const std::shared_ptr<Link>& link, const Status& status, bool was_up) override;
  void OnLinkReleased(const std::shared_ptr<Link>& link) override { links_.Release(link); }
  void OnArrival(int64_t step, const KeyId& key, Arrival arrival) override {
    steps_.OnArrival(step, key, std::move(arrival));
  }
  void OnRestart(Link* link, int64_t step, uint32_t generation) override {
    steps_.OnRestart(link, step, generation);
  }
  void OnRestarted(Link* link, int64_t step) override { steps_.OnRestarted(*link, step); }
  void OnAbort(Link* link, StepAbort abort) override;
  void OnCall(std::shared_ptr<IncomingCall> call) override;
  void OnLost(const std::shared_ptr<Link>& link, std::vector<UnackedTensor> tensors) override;

 private:
  std::vector<Peer*> Peers() const;
  std::vector<Peer*> PeersNamed(const std::string& task) const;
  PeerStats StatsOfCaller(const Traffic* traffic) const;

  Runtime* const runtime_;
  const Identity identity_;
  Links links_;
  Fallback fallback_;
  Steps steps_;
  Acceptor acceptor_;
  std::atomic<CallHandler*> call_handler_{nullptr};

  mutable std::mutex mu_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Peer>> peers_;
};

}  // namespace rdma_transport
