#include "protocol/endpoint.h"

#include <utility>

#include "base/log.h"
#include "base/random.h"

namespace rdma_transport {

Endpoint::Endpoint(Runtime* runtime, std::string task)
    : runtime_(runtime),
      identity_{std::move(task), Random64()},
      links_(runtime, this, identity_.task),
      fallback_(runtime->settings(), &links_),
      steps_(&links_, &fallback_),
      acceptor_(identity_, runtime, &links_) {
  runtime_->Add(this);
}

Endpoint::~Endpoint() { runtime_->Remove(this); }

// --- Peers ---

Peer* Endpoint::GetPeer(const std::string& task, const std::string& address) {
  Traffic* traffic = links_.TrafficWith(task);
  std::lock_guard<std::mutex> lock(mu_);
  std::unique_ptr<Peer>& peer = peers_[{task, address}];
  if (peer == nullptr) {
    const PeerContext context = {runtime_, &identity_, &links_, &fallback_};
    peer = std::make_unique<Peer>(context, task, address, traffic);
  }
  return peer.get();
}

std::vector<Peer*> Endpoint::Peers() const {
  std::vector<Peer*> peers;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [name, peer] : peers_) peers.push_back(peer.get());
  return peers;
}

std::vector<Peer*> Endpoint::PeersNamed(const std::string& task) const {
  std::vector<Peer*> found;
  for (Peer* peer : Peers()) {
    if (peer->task() == task) found.push_back(peer);
  }
  return found;
}

void Endpoint::Unplan(const std::string& owner) {
  for (Peer* peer : Peers()) peer->Unplan(owner);
}

// --- Tensors and steps ---

void Endpoint::Receive(Peer* peer, int64_t step, std::string_view key,
                       const std::shared_ptr<PendingRecv>& recv, const BootstrapCall& call) {
  if (steps_.Receive(peer->id(), step, key, recv)) peer->Wait(recv, call);
}

void Endpoint::Watch(Peer* peer, int64_t step, std::string_view key,
                     const std::shared_ptr<PendingRecv>& recv) {
  if (steps_.Receive(peer->id(), step, key, recv)) peer->Watch(recv);
}

void Endpoint::EndStep(int64_t step) {
  steps_.End(step);
  fallback_.EndStep(step);
  for (const auto& link : links_.All()) link->Confirm();
}

void Endpoint::RestartStep(int64_t step) {
  fallback_.EndStep(step);
  steps_.Restart(step);
}

// --- Events of links ---

void Endpoint::OnLinkUp(const std::shared_ptr<Link>& link) {
  steps_.OnLinkUp(link.get());
  fallback_.OnLinkUp(link.get());  // before the peer sends what waits for this link
  const bool shared = links_.pairing().OnUp(*link);
  for (Peer* peer : PeersNamed(link->remote().task)) peer->OnLinkUp(link, shared);
}

void Endpoint::OnLinkDown(const std::shared_ptr<Link>& link, const Status& status, bool was_up) {
  links_.Remove(link, status);
  bool used = false;
  for (Peer* peer : PeersNamed(link->remote().task)) used |= peer->OnLinkDown(link, status);
  if (used) Log(LogLevel::kInfo, status.message());
  steps_.OnLinkDown(*link);
  // If the two tasks have several links, tensors may arrive on one and be waited for on another.
  // What ended one may have ended the other.
  if (was_up) links_.Probe(link->remote().task);
}

void Endpoint::OnAbort(Link* link, StepAbort abort) {
  if (steps_.OnAbort(link, std::move(abort))) ArmTimer();
}

void Endpoint::OnCall(std::shared_ptr<IncomingCall> call) {
  CallHandler* const handler = call_handler_.load();
  if (handler == nullptr) return call->Refuse();
  handler->OnCall(std::move(call));
}

void Endpoint::OnLost(const std::shared_ptr<Link>& link, std::vector<UnackedTensor> tensors) {
  Traffic* traffic = links_.TrafficWith(link->remote().task);
  for (UnackedTensor& tensor : tensors) fallback_.SendLost(traffic, std::move(tensor));
}

bool Endpoint::Tick(Nanos now, bool suspended) {
  bool busy = steps_.Tick();
  for (const auto& link : links_.All()) busy |= link->Tick(now, suspended);
  for (Peer* peer : Peers()) busy |= peer->Tick();
  return busy;
}

// --- Reports ---

std::vector<PeerStats> Endpoint::Stats() const {
  std::map<std::string, Traffic*> callers = links_.Traffics();
  std::vector<PeerStats> all;
  for (const Peer* peer : Peers()) {
    callers.erase(peer->task());
    PeerStats stats = peer->Stats();
    const bool again = !all.empty() && all.back().traffic == stats.traffic;
    if (!again) {
      all.push_back(std::move(stats));
    } else if (stats.linked || !all.back().linked) {
      all.back() = std::move(stats);
    }
  }
  for (const auto& [task, traffic] : callers) {
    PeerStats stats = StatsOfCaller(traffic);
    if (stats.linked || !traffic->Unused()) all.push_back(std::move(stats));
  }
  return all;
}

PeerStats Endpoint::StatsOfCaller(const Traffic* traffic) const {
  PeerStats stats;
  stats.local = traffic->tasks.local;
  stats.task = traffic->tasks.remote;
  stats.traffic = traffic;
  stats.transport = "idle";
  for (const auto& link : links_.UpTo(traffic->tasks.remote)) {
    link->Describe(&stats);
    stats.links = 1;
  }
  return stats;
}

void Endpoint::ReportEdges(std::vector<EdgeReport>* edges) const {
  for (const auto& link : links_.All()) {
    const size_t before = edges->size();
    link->static_edges().Report(edges);
    for (size_t i = before; i < edges->size(); ++i) (*edges)[i].peer = link->remote().task;
  }
}

TaskReport Endpoint::Report() const {
  TaskReport report;
  report.task = identity_.task;
  report.peers = Stats();
  ReportEdges(&report.edges);
  report.unclaimed_tensors = unclaimed_tensors();
  return report;
}

}  // namespace rdma_transport
