// One task of a cluster in this process: its identity, its peers, its links, and the mailbox.
//
// This is what the TensorFlow layer sees of the protocol, together with Peer and Waiter.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "protocol/bootstrap.h"
#include "protocol/ledger.h"
#include "protocol/link.h"
#include "protocol/mailbox.h"
#include "protocol/peer.h"

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
  memory::Arena* arena() const;
  memory::SlotPools* slots() const;

  // The peer that a cluster calls `task` and finds at `address` ("host:port"); lives as long as
  // this endpoint.
  Peer* GetPeer(const std::string& task, const std::string& address);

  // Ends what Peer::Plan() began for the owners whose names begin with `owner`.
  void Unplan(const std::string& owner);

  // Completes `waiter` with the tensor of that step and key, which `peer` sends.
  void Receive(Peer* peer, int64_t step, std::string_view key,
               const std::shared_ptr<Waiter>& waiter, const BootstrapCall& call);
  // Forgets a waiter that its owner has claimed.
  void Forget(int64_t step, std::string_view key, const Waiter* waiter);
  // The step is over on this task: what is left of it is thrown away.
  void EndStep(int64_t step);
  // The same for a step that may begin anew. Peers throw away what this task sent for it.
  void ClearStep(int64_t step);
  // Tells all peers, also those whose links come up before the step ends.
  void Announce(int64_t step, const std::string& key, const std::string& text);
  // A RecvTensor call has fetched it.
  void Fetched(int64_t step, std::string_view key) { ledger_.Fetched(step, key); }

  // Answers a peer's bootstrap request.
  std::string HandleBootstrap(std::string_view request);

  // One for each task: of several addresses of one, the one that is linked, or else the last. Also
  // for those that no cluster of this task names, but that linked themselves to it.
  std::vector<PeerStats> Stats() const;
  void ReportEdges(std::vector<EdgeReport>* edges) const;
  size_t kept_arrivals() const { return mailbox_.kept(); }

  // For peers and the runtime.
  // Sends the waiter to TensorFlow's transport, or fails it where that is forbidden.
  void UseGrpc(const std::string& from, const std::shared_ptr<Waiter>& waiter,
               const std::string& reason);
  std::shared_ptr<Link> NewLink(const std::string& task);
  Traffic* TrafficWith(const std::string& task);
  void AddLink(const std::shared_ptr<Link>& link, Peer* peer);
  void RemoveLink(const std::shared_ptr<Link>& link);
  std::vector<std::shared_ptr<Link>> LinksTo(const std::string& task) const;
  Ledger& ledger() { return ledger_; }
  bool Tick(Nanos now, bool excuse);

  // LinkOwner.
  void ArmTimer() override;
  void OnLinkUp(const std::shared_ptr<Link>& link) override;
  void OnLinkDown(const std::shared_ptr<Link>& link, const Status& status, bool was_up) override;
  void OnArrival(int64_t step, const KeyId& key, Arrival arrival) override;
  void OnForget(const Link* link, int64_t step) override { mailbox_.Forget(step, link); }
  void OnLost(const std::shared_ptr<Link>& link, std::vector<UnconfirmedTensor> tensors) override;

 private:
  void Deliver(Arrival arrival, const std::shared_ptr<Waiter>& waiter);
  std::vector<std::shared_ptr<Link>> AllLinks() const;
  void ProbeLinks(const Identity& remote);
  void KeepInUse(const std::shared_ptr<Link>& link);
  void ReleaseInUse(const Identity& dead);
  std::vector<Peer*> PeersNamed(const std::string& task) const;
  PeerStats StatsOfCaller(const Traffic* traffic) const;

  Runtime* const runtime_;
  const Identity identity_;
  Mailbox mailbox_;
  Ledger ledger_;

  struct Announcement {
    std::string key;
    std::string text;
  };
  static void Tell(Link* link, int64_t step, const Announcement& announcement);
  void ForgetAnnouncements(int64_t step);

  mutable std::mutex mu_;
  std::map<int64_t, std::vector<Announcement>> announcements_;  // by step
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Peer>> peers_;
  std::map<std::string, Traffic*> traffic_;       // by task
  std::map<std::shared_ptr<Link>, Peer*> links_;  // null: the remote task asked for it
  // That ended while their peers live, and may still read and write here: until these die.
  std::vector<std::shared_ptr<Link>> in_use_;
};

}  // namespace rdma_transport
