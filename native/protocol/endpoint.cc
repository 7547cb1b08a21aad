#include "protocol/endpoint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "protocol/handshake.h"
#include "protocol/integrity.h"
#include "protocol/runtime.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

// Limits what remote tasks may make this task hold; honest tasks stay far below.
constexpr size_t kMaxPendingLinks = 1024;
constexpr size_t kMaxLinksPerTask = 16;
constexpr size_t kMaxTasks = 16384;

// A peer that sent an abort on one link sends it on the others at once.
constexpr Nanos kAbortTimeout = kSecond;

Status RefuseForNow(const std::string& what) {
  return Status(Code::kResourceExhausted, "it has " + what + "; try again later");
}

}  // namespace

Endpoint::Endpoint(Runtime* runtime, std::string task)
    : runtime_(runtime), identity_{std::move(task), Random64()} {
  runtime_->AddEndpoint(this);
}

Endpoint::~Endpoint() { runtime_->RemoveEndpoint(this); }

const Settings& Endpoint::settings() const { return runtime_->settings(); }
fabric::Device* Endpoint::device() const { return runtime_->device(); }
const std::string& Endpoint::no_fabric_reason() const { return runtime_->no_fabric_reason(); }
SecretFile* Endpoint::secret_file() const { return runtime_->secret_file(); }
memory::Arena* Endpoint::arena() const { return runtime_->arena(); }
memory::SlotPools* Endpoint::slots() const { return runtime_->slots(); }
void Endpoint::ArmTimer() { runtime_->ArmTimer(); }

Peer* Endpoint::GetPeer(const std::string& task, const std::string& address) {
  Traffic* traffic = TrafficWith(task);
  std::lock_guard<std::mutex> lock(mu_);
  std::unique_ptr<Peer>& peer = peers_[{task, address}];
  if (peer == nullptr) peer = std::make_unique<Peer>(this, task, address, traffic);
  return peer.get();
}

Traffic* Endpoint::TrafficWith(const std::string& task) {
  std::lock_guard<std::mutex> lock(mu_);
  Traffic*& traffic = traffic_[task];
  if (traffic == nullptr) traffic = GlobalCounters().traffics.Make(identity_.task, task);
  return traffic;
}

std::vector<PeerStats> Endpoint::Stats() const {
  std::vector<Peer*> peers;
  std::map<std::string, Traffic*> callers;
  {
    std::lock_guard<std::mutex> lock(mu_);
    callers = traffic_;
    for (const auto& [name, peer] : peers_) {
      peers.push_back(peer.get());
      callers.erase(name.first);
    }
  }
  std::vector<PeerStats> all;
  for (const Peer* peer : peers) {
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
  stats.local = traffic->local;
  stats.task = traffic->remote;
  stats.traffic = traffic;
  stats.transport = "idle";
  for (const auto& link : LinksTo(traffic->remote)) {
    stats.Describe(*link);
    stats.links = 1;
  }
  return stats;
}

void Endpoint::Unplan(const std::string& owner) {
  std::vector<Peer*> peers;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [name, peer] : peers_) peers.push_back(peer.get());
  }
  for (Peer* peer : peers) peer->Unplan(owner);
}

void Endpoint::ReportEdges(std::vector<EdgeReport>* edges) const {
  for (const auto& link : AllLinks()) {
    const size_t before = edges->size();
    link->static_edges().Report(edges);
    for (size_t i = before; i < edges->size(); ++i) (*edges)[i].peer = link->remote().task;
  }
}

// --- Tensors ---

void Endpoint::Receive(Peer* peer, int64_t step, std::string_view key,
                       const std::shared_ptr<PendingRecv>& recv, const BootstrapCall& call) {
  if (Hold(peer, step, key, recv) || Enter(*peer, step, key, recv)) peer->Wait(recv, call);
}

void Endpoint::Watch(Peer* peer, int64_t step, std::string_view key,
                     const std::shared_ptr<PendingRecv>& recv) {
  if (Hold(peer, step, key, recv) || Enter(*peer, step, key, recv)) peer->Watch(recv);
}

bool Endpoint::AllUpLocked(const Traffic* traffic,
                           const std::function<bool(const Link&)>& holds) const {
  return std::all_of(links_.begin(), links_.end(), [&](const auto& entry) {
    const Link& link = *entry.first;
    return link.traffic() != traffic || !link.up() || holds(link);
  });
}

bool Endpoint::ConfirmedLocked(const Traffic* traffic, int64_t step) const {
  return AllUpLocked(traffic, [step](const Link& link) { return !link.AwaitsRestarted(step); });
}

bool Endpoint::Hold(Peer* peer, int64_t step, std::string_view key,
                    const std::shared_ptr<PendingRecv>& recv) {
  if (!restarted_.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(mu_);
  if (ConfirmedLocked(peer->traffic(), step)) return false;
  held_.push_back({peer, step, std::string(key), recv});
  return true;
}

// Called when a link to that peer has confirmed the restart or ended.
void Endpoint::ReleaseHeld(const Traffic* traffic, int64_t step) {
  std::vector<Held> released;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!ConfirmedLocked(traffic, step)) return;
    const auto first = std::stable_partition(held_.begin(), held_.end(), [&](const Held& held) {
      return held.step != step || held.peer->traffic() != traffic;
    });
    released.assign(std::make_move_iterator(first), std::make_move_iterator(held_.end()));
    held_.erase(first, held_.end());
  }
  for (const Held& held : released) {
    Enter(*held.peer, held.step, held.key, held.recv);
    // Its owner could not remove it before it was in the mailbox.
    if (held.recv->claimed()) Forget(held.step, held.key, held.recv.get());
  }
}

bool Endpoint::Enter(const Peer& peer, int64_t step, std::string_view key,
                     const std::shared_ptr<PendingRecv>& recv) {
  Arrival arrival;
  const KeyId id = KeyId::Of(key);
  switch (mailbox_.TakeOrWait(step, id, peer.traffic(), recv, &arrival)) {
    case Mailbox::Taken::kArrival:
      Deliver(std::move(arrival), recv);
      return false;
    case Mailbox::Taken::kEnded:
      FailAll({recv}, Status(Code::kAborted, "the step has ended on this task"));
      return false;
    case Mailbox::Taken::kWaiting:
      break;
  }
  // Checked after `recv` is in the mailbox, where a later abort finds it.
  const auto error = aborts_.ErrorOf(peer.traffic(), step);
  if (!error.has_value()) return true;
  mailbox_.Remove(step, id, recv.get());
  FailAborted({recv}, peer.task(), *error);
  return false;
}

void Endpoint::FailAborted(std::list<std::shared_ptr<PendingRecv>> recvs, const std::string& task,
                           const std::string& error) {
  for (const auto& recv : recvs) {
    if (!recv->Claim()) continue;
    Delivery delivery;
    delivery.status = Status(Code::kAborted, "peer " + task + " aborted the step");
    delivery.error = error;
    recv->OnDelivery(std::move(delivery));
  }
}

void Endpoint::Forget(int64_t step, std::string_view key, const PendingRecv* recv) {
  mailbox_.Remove(step, KeyId::Of(key), recv);
}

void Endpoint::EndStep(int64_t step) {
  mailbox_.EndStep(step);
  pending_fallbacks_.EndStep(step);
  aborts_.End(step);
  for (const auto& link : AllLinks()) link->Confirm();
}

void Endpoint::RestartStep(int64_t step) {
  restarted_.store(true);
  const auto recvs = mailbox_.TakeAllPending(step);
  pending_fallbacks_.EndStep(step);
  const uint32_t generation = aborts_.Restart(step);
  std::set<const void*> up;
  for (const auto& link : AllLinks()) {
    if (!link->up()) continue;
    up.insert(link.get());
    link->SendRestart(step, generation);
  }
  mailbox_.Forget(step, [&up](const Arrival& came) { return up.count(came.origin) == 0; });
  FailAll(recvs, Status(Code::kAborted, "the step was restarted on this task"));
}

// A link that comes up in the meantime finds the abort: see OnLinkUp(). Arrived tensors are dropped
// now, because a step whose master died never ends; but not if they may be of a generation that
// begins on another task.
void Endpoint::AbortStep(int64_t step, std::string error) {
  if (mailbox_.HasEnded(step) || !aborts_.Abort(step, std::move(error))) return;
  mailbox_.Forget(step, [&](const Arrival&) { return !aborts_.EverRestarted(step); });
  for (const auto& link : AllLinks()) {
    if (!link->up()) continue;
    if (const auto abort = aborts_.For(link->traffic(), step)) link->SendAbort(*abort);
  }
}

void Endpoint::OnAbort(Link* link, StepAbort abort) {
  const auto same = [&](const ComingAbort& coming) {
    return coming.traffic == link->traffic() && coming.abort.step == abort.step &&
           coming.abort.generation == abort.generation &&
           coming.abort.peer_generation == abort.peer_generation;
  };
  auto coming = std::find_if(coming_aborts_.begin(), coming_aborts_.end(), same);
  if (coming == coming_aborts_.end()) {
    if (coming_aborts_.size() == StepAborts::kRemembered) coming_aborts_.pop_front();
    coming_aborts_.push_back({std::move(abort), link->remote(), link->traffic(), Now(), {}});
    coming = std::prev(coming_aborts_.end());
  }
  coming->links.insert(link);
  ApplyAborts();
}

bool Endpoint::HasComeLocked(const ComingAbort& coming) const {
  return AllUpLocked(coming.traffic, [&coming](const Link& link) {
    return link.remote().incarnation != coming.from.incarnation || coming.links.count(&link) != 0;
  });
}

// Applies the aborts that have arrived on all links, or have waited too long for the others.
void Endpoint::ApplyAborts() {
  if (coming_aborts_.empty()) return;
  const Nanos now = Now();
  std::vector<ComingAbort> come;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto first = std::stable_partition(
        coming_aborts_.begin(), coming_aborts_.end(), [&](const ComingAbort& coming) {
          return now - coming.since < kAbortTimeout && !HasComeLocked(coming);
        });
    come.assign(std::make_move_iterator(first), std::make_move_iterator(coming_aborts_.end()));
    coming_aborts_.erase(first, coming_aborts_.end());
  }
  for (const auto& [abort, from, traffic, since, links] : come) {
    if (!aborts_.OnPeerAbort(traffic, from.incarnation, abort)) continue;
    // Otherwise the step may go on here with what the peer sent before.
    if (aborts_.For(traffic, abort.step).has_value()) {
      mailbox_.Forget(abort.step,
                      [peer = traffic](const Arrival& came) { return came.traffic == peer; });
    }
    FailAborted(mailbox_.TakePending(abort.step, traffic), from.task, abort.error);
  }
  if (!coming_aborts_.empty()) ArmTimer();
}

// An abort that the peer received before it restarted the step applied to its previous generation.
// Receives of the new one would also wait in vain until this task restarts the step, so it is sent
// again.
void Endpoint::OnRestart(Link* link, int64_t step, uint32_t generation) {
  mailbox_.Forget(step, [link](const Arrival& came) { return came.origin == link; });
  aborts_.OnPeerRestart(link->traffic(), link->remote().incarnation, step, generation);
  if (const auto abort = aborts_.For(link->traffic(), step)) link->SendAbort(*abort);
}

void Endpoint::OnRestarted(Link* link, int64_t step) { ReleaseHeld(link->traffic(), step); }

void Endpoint::OnArrival(int64_t step, const KeyId& key, Arrival arrival) {
  const std::shared_ptr<PendingRecv> recv = mailbox_.Put(step, key, &arrival);
  if (recv != nullptr) Deliver(std::move(arrival), recv);
}

void Endpoint::UseGrpc(const std::string& from, const std::shared_ptr<PendingRecv>& recv,
                       const std::string& reason) {
  if (settings().allow_fallback) {
    if (recv->AskGrpc()) recv->OnUseGrpc(reason);
    return;
  }
  GlobalCounters().errors.Add("fallback_forbidden");
  FailAll({recv},
          Status(Code::kFailedPrecondition, "a tensor of " + from + " would fall back to gRPC (" +
                                                reason + "), and RDMA_TRANSPORT_FALLBACK=forbid"));
}

void Endpoint::Deliver(Arrival arrival, const std::shared_ptr<PendingRecv>& recv) {
  if (arrival.pull) {
    if (!recv->claimed()) UseGrpc("its peer", recv, arrival.reason);
    return;
  }
  if (!recv->Claim()) return;
  if (arrival.delivery.status.ok()) {
    arrival.traffic->Received(arrival.delivery.mode).Add(arrival.delivery.bytes);
  }
  if (arrival.channel == nullptr || !arrival.delivery.status.ok()) {
    Trace::HandedOver(arrival.delivery.arrival);
    Verify(arrival.traffic->remote, &arrival.delivery);
    recv->OnDelivery(std::move(arrival.delivery));
    return;
  }
  for (const auto& link : AllLinks()) {
    if (link->channel() == arrival.channel.get()) {
      link->ReadThenDeliver(std::move(arrival), recv);
      return;
    }
  }
  Delivery lost;
  lost.status = Status(Code::kUnavailable, "the peer was lost before its tensor could be read");
  recv->OnDelivery(std::move(lost));
}

// --- Links ---

std::shared_ptr<Link> Endpoint::NewLink(const std::string& task) {
  const LinkContext context = {device(),          arena(),
                               runtime_->slots(), runtime_->receive_arena(),
                               &settings(),       TrafficWith(task)};
  return std::make_shared<Link>(context, this, Now() + settings().connect_timeout);
}

void Endpoint::AddLink(const std::shared_ptr<Link>& link, Peer* peer) {
  std::lock_guard<std::mutex> lock(mu_);
  links_[link] = peer;
}

void Endpoint::RemoveLink(const std::shared_ptr<Link>& link) {
  std::lock_guard<std::mutex> lock(mu_);
  links_.erase(link);
}

std::vector<std::shared_ptr<Link>> Endpoint::AllLinks() const {
  std::vector<std::shared_ptr<Link>> links;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [link, peer] : links_) links.push_back(link);
  return links;
}

std::vector<std::shared_ptr<Link>> Endpoint::LinksTo(const std::string& task) const {
  std::vector<std::shared_ptr<Link>> found;
  for (auto& link : AllLinks()) {
    if (link->up() && link->remote().task == task) found.push_back(std::move(link));
  }
  return found;
}

std::vector<Peer*> Endpoint::PeersNamed(const std::string& task) const {
  std::vector<Peer*> found;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [name, peer] : peers_) {
    if (name.first == task) found.push_back(peer.get());
  }
  return found;
}

// Checks whether the remote task may open one more link.
Status Endpoint::Admit(const std::string& task) const {
  size_t pending = 0;
  std::vector<std::shared_ptr<Link>> same;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (traffic_.size() >= kMaxTasks && traffic_.count(task) == 0) {
      return RefuseForNow("as many peers as it admits (" + std::to_string(kMaxTasks) + ")");
    }
    for (const auto& [link, peer] : links_) {
      if (peer != nullptr) continue;
      if (!link->up()) ++pending;
      if (link->remote().task == task) same.push_back(link);
    }
  }
  if (pending >= kMaxPendingLinks) {
    return RefuseForNow(std::to_string(pending) + " connections that are not up yet");
  }
  if (same.size() < kMaxLinksPerTask) return OkStatus();
  // The links of a previous incarnation end when something is sent on them.
  for (const auto& link : same) {
    if (link->up()) link->Probe();
  }
  return RefuseForNow(std::to_string(same.size()) + " connections of " + task);
}

std::string Endpoint::HandleBootstrap(std::string_view bytes) {
  BootstrapReply reply;
  reply.version = kProtocolVersion;
  reply.from = identity_;
  BootstrapRequest request;
  Status status = BootstrapRequest::Decode(bytes, &request);
  if (status.ok() && request.version != kProtocolVersion) {
    status = Status(Code::kFailedPrecondition,
                    "it uses protocol version " + std::to_string(kProtocolVersion) +
                        ", this task version " + std::to_string(request.version));
  }
  AnsweringHandshake handshake(secret_file(), kTaskService);
  if (status.ok()) {
    status = handshake.Check(request);
    reply.again = !status.ok();  // the file can be fixed while the job runs
  }
  if (status.ok() && device() == nullptr) {
    status = Status(Code::kFailedPrecondition, "it has no fabric: " + no_fabric_reason());
  }
  std::shared_ptr<Link> link;
  if (status.ok()) {
    status = Admit(request.from.task);
    reply.again = !status.ok();
    if (!status.ok()) GlobalCounters().errors.Add("connection_refused");
  }
  if (status.ok()) {
    ProbeLinks(request.from);  // the peer may be reconnecting because one of them is broken
    link = NewLink(request.from.task);
    status = link->Open();
    reply.again = !status.ok();
  }
  if (status.ok()) {
    link->set_remote(request.from);
    AddLink(link, nullptr);
    link->channel()->Authenticate(handshake.channel_key());
    status = link->channel()->Connect(request.channel, fabric::Role::kPassive);
    if (!status.ok()) RemoveLink(link);
    // Unavailable means that the address cannot be reached, which is permanent.
    reply.again = !status.ok() && status.code() != Code::kUnavailable;
  }
  if (status.ok()) {
    reply.channel = link->channel()->Address();
    ArmTimer();  // drops the link if the peer never connects
  } else {
    reply.refusal = status.message();
  }
  handshake.Sign(&reply);
  return reply.Encode();
}

void Endpoint::OnLinkUp(const std::shared_ptr<Link>& link) {
  Peer* peer = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = links_.find(link);
    if (found != links_.end()) peer = found->second;
  }
  const std::string& task = link->remote().task;
  aborts_.OnPeerUp(link->traffic(), link->remote().incarnation);
  for (const auto& [step, generation] : aborts_.Restarted()) link->SendRestart(step, generation);
  for (const StepAbort& abort : aborts_.AllFor(link->traffic())) link->SendAbort(abort);
  if (peer != nullptr) {
    peer->OnLinkUp(link);
  } else {
    for (Peer* named : PeersNamed(task)) named->Reconsider();
  }
  for (const auto& [step, key] : pending_fallbacks_.For(task))
    link->SendPull(step, key, "sent before");
}

void Endpoint::OnLinkDown(const std::shared_ptr<Link>& link, const Status& status, bool was_up) {
  Peer* peer = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = links_.find(link);
    if (found != links_.end()) {
      peer = found->second;
      links_.erase(found);
    }
  }
  if (peer != nullptr) {
    Log(LogLevel::kInfo, status.message());
    peer->OnLinkDown(link, status);
  }
  for (const auto& [step, generation] : aborts_.Restarted()) ReleaseHeld(link->traffic(), step);
  ApplyAborts();
  if (status.code() != Code::kUnavailable && link->InUse()) KeepInUse(link);
  // Tensors arrive on the peer's links, but are waited for on this task's own. What ended one may
  // have ended the other.
  if (was_up) ProbeLinks(link->remote());
}

// Destroying the link would free its outstanding buffers and slots while the peer still uses them.
void Endpoint::KeepInUse(const std::shared_ptr<Link>& link) {
  std::lock_guard<std::mutex> lock(mu_);
  in_use_.push_back(link);
}

void Endpoint::OnLinkReleased(const std::shared_ptr<Link>& link) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    in_use_.erase(std::remove(in_use_.begin(), in_use_.end(), link), in_use_.end());
  }
  link->ReleaseOutstanding();
}

void Endpoint::ProbeLinks(const Identity& remote) {
  for (const auto& link : AllLinks()) {
    if (link->up() && link->remote().incarnation == remote.incarnation) link->Probe();
  }
}

void Endpoint::OnLost(const std::shared_ptr<Link>& link, std::vector<UnackedTensor> tensors) {
  const std::string& task = link->remote().task;
  const std::vector<Peer*> peers = PeersNamed(task);
  for (UnackedTensor& tensor : tensors) {
    if (!peers.empty()) peers.front()->SendLost(std::move(tensor));
  }
}

bool Endpoint::Tick(Nanos now, bool excuse) {
  ApplyAborts();
  bool busy = !coming_aborts_.empty();
  for (const auto& link : AllLinks()) busy |= link->Tick(now, excuse);
  return busy;
}

}  // namespace rdma_transport
