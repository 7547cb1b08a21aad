#include "protocol/endpoint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "protocol/integrity.h"
#include "protocol/runtime.h"
#include "protocol/trace.h"

namespace rdma_transport {

Endpoint::Endpoint(Runtime* runtime, std::string task)
    : runtime_(runtime), identity_{std::move(task), Random64()} {
  runtime_->AddEndpoint(this);
}

Endpoint::~Endpoint() { runtime_->RemoveEndpoint(this); }

const Settings& Endpoint::settings() const { return runtime_->settings(); }
fabric::Device* Endpoint::device() const { return runtime_->device(); }
const std::string& Endpoint::no_fabric_reason() const { return runtime_->no_fabric_reason(); }
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
  stats.path = "idle";
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
                       const std::shared_ptr<Waiter>& waiter, const BootstrapCall& call) {
  Arrival arrival;
  if (mailbox_.TakeOrWait(step, KeyId::Of(key), waiter, &arrival)) {
    Deliver(std::move(arrival), waiter);
  } else {
    peer->Wait(waiter, call);
  }
}

void Endpoint::Forget(int64_t step, std::string_view key, const Waiter* waiter) {
  mailbox_.Remove(step, KeyId::Of(key), waiter);
}

void Endpoint::EndStep(int64_t step) {
  mailbox_.EndStep(step);
  ledger_.EndStep(step);
  ForgetAnnouncements(step);
}

void Endpoint::ClearStep(int64_t step) {
  mailbox_.ClearStep(step);
  ledger_.EndStep(step);
  ForgetAnnouncements(step);
  for (const auto& link : AllLinks()) {
    if (link->up()) link->SendForget(step);
  }
}

void Endpoint::Announce(int64_t step, const std::string& key, const std::string& text) {
  const Announcement announcement = {key, text};
  {
    std::lock_guard<std::mutex> lock(mu_);
    announcements_[step].push_back(announcement);
  }
  for (const auto& link : AllLinks()) {
    if (link->up()) Tell(link.get(), step, announcement);
  }
}

// A peer that cannot be told is lost, or hears of it when it answers again. One that takes nothing
// must not wait on for what has failed.
void Endpoint::Tell(Link* link, int64_t step, const Announcement& announcement) {
  Outgoing outgoing;
  outgoing.step = step;
  outgoing.key = announcement.key;
  outgoing.data = announcement.text.data();
  outgoing.bytes = announcement.text.size();
  outgoing.awaited = true;
  const SendOutcome outcome = link->Send(&outgoing);
  if (!outcome.status.ok())
    Log(LogLevel::kDebug, announcement.key + ": " + outcome.status.message());
  if (outcome.status.code() == Code::kResourceExhausted) link->channel()->Close(outcome.status);
}

void Endpoint::ForgetAnnouncements(int64_t step) {
  std::lock_guard<std::mutex> lock(mu_);
  announcements_.erase(step);
}

void Endpoint::OnArrival(int64_t step, const KeyId& key, Arrival arrival) {
  const std::shared_ptr<Waiter> waiter = mailbox_.Put(step, key, &arrival);
  if (waiter != nullptr) Deliver(std::move(arrival), waiter);
}

void Endpoint::UseGrpc(const std::string& from, const std::shared_ptr<Waiter>& waiter,
                       const std::string& reason) {
  if (settings().allow_fallback) {
    if (waiter->AskGrpc()) waiter->OnUseGrpc(reason);
    return;
  }
  GlobalCounters().errors.Add("fallback_forbidden");
  FailAll({waiter},
          Status(Code::kFailedPrecondition, "a tensor of " + from + " would leave the fabric (" +
                                                reason + "), and RDMA_TRANSPORT_FALLBACK=forbid"));
}

void Endpoint::Deliver(Arrival arrival, const std::shared_ptr<Waiter>& waiter) {
  if (arrival.pull) {
    if (!waiter->claimed()) UseGrpc("its peer", waiter, arrival.reason);
    return;
  }
  if (!waiter->Claim()) return;
  if (arrival.delivery.status.ok()) {
    arrival.traffic->Received(arrival.delivery.path).Add(arrival.delivery.bytes);
  }
  if (arrival.channel == nullptr || !arrival.delivery.status.ok()) {
    Trace::HandedOver(arrival.delivery.arrival);
    Verify(arrival.traffic->remote, &arrival.delivery);
    waiter->OnDelivery(std::move(arrival.delivery));
    return;
  }
  for (const auto& link : AllLinks()) {
    if (link->channel() == arrival.channel.get()) {
      link->ReadThenDeliver(std::move(arrival), waiter);
      return;
    }
  }
  Delivery lost;
  lost.status = Status(Code::kUnavailable, "the peer was lost before its tensor could be read");
  waiter->OnDelivery(std::move(lost));
}

// --- Links ---

std::shared_ptr<Link> Endpoint::NewLink(const std::string& task) {
  const LinkContext context = {device(),         arena(),     runtime_->slots(),
                               runtime_->sink(), &settings(), TrafficWith(task)};
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

std::string Endpoint::HandleBootstrap(std::string_view bytes) {
  BootstrapReply reply;
  reply.version = kProtocolVersion;
  reply.from = identity_;
  BootstrapRequest request;
  Status status = BootstrapRequest::Decode(bytes, &request);
  if (status.ok() && request.version != kProtocolVersion) {
    status = Status(Code::kFailedPrecondition,
                    "it speaks version " + std::to_string(kProtocolVersion) +
                        " of the protocol, this task version " + std::to_string(request.version));
  }
  if (status.ok() && device() == nullptr) {
    status = Status(Code::kFailedPrecondition, "it has no fabric: " + no_fabric_reason());
  }
  std::shared_ptr<Link> link;
  if (status.ok()) {
    ProbeLinks(request.from);  // perhaps it asks because one of them is broken
    link = NewLink(request.from.task);
    status = link->Open();
    reply.again = !status.ok();
  }
  if (status.ok()) {
    link->set_remote(request.from);
    AddLink(link, nullptr);
    status = link->channel()->Connect(request.channel, fabric::Role::kPassive);
    if (!status.ok()) RemoveLink(link);
    // Unavailable: that address is out of reach, and stays so.
    reply.again = !status.ok() && status.code() != Code::kUnavailable;
  }
  if (status.ok()) {
    reply.channel = link->channel()->Address();
    ArmTimer();  // a peer that never comes is forgotten
  } else {
    reply.refusal = status.message();
  }
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
  if (peer != nullptr) {
    peer->OnLinkUp(link);
  } else {
    for (Peer* named : PeersNamed(task)) named->Reconsider();
  }
  for (const auto& [step, key] : ledger_.For(task)) link->SendPull(step, key, "sent before");
  std::map<int64_t, std::vector<Announcement>> announcements;
  {
    std::lock_guard<std::mutex> lock(mu_);
    announcements = announcements_;
  }
  for (const auto& [step, all] : announcements) {
    for (const Announcement& announcement : all) Tell(link.get(), step, announcement);
  }
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
  const bool gone = status.code() == Code::kUnavailable;
  if (!gone && link->InUse()) KeepInUse(link);
  if (gone && was_up && !link->channel()->MayLose()) ReleaseInUse(link->remote());
  // Tensors come on the peer's links and are waited for on this task's own; one end of a life ends
  // both. Where a link may break while its peer lives, another one may be a new one.
  if (!was_up) return;
  if (link->channel()->MayLose()) return ProbeLinks(link->remote());
  for (const auto& other : AllLinks()) {
    if (other->remote().incarnation == link->remote().incarnation) other->channel()->Close(status);
  }
}

// With the link its loans and its slots would go, and be overwritten, or overwrite what comes there
// next.
void Endpoint::KeepInUse(const std::shared_ptr<Link>& link) {
  std::lock_guard<std::mutex> lock(mu_);
  in_use_.push_back(link);
}

void Endpoint::ReleaseInUse(const Identity& dead) {
  std::vector<std::shared_ptr<Link>> released;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto first = std::partition(in_use_.begin(), in_use_.end(), [&](const auto& link) {
      return link->remote().incarnation != dead.incarnation;
    });
    released.assign(std::make_move_iterator(first), std::make_move_iterator(in_use_.end()));
    in_use_.erase(first, in_use_.end());
  }
  for (const auto& link : released) link->ReleaseLent();
}

void Endpoint::ProbeLinks(const Identity& remote) {
  for (const auto& link : AllLinks()) {
    if (link->up() && link->remote().incarnation == remote.incarnation) link->Probe();
  }
}

void Endpoint::OnLost(const std::shared_ptr<Link>& link, std::vector<UnconfirmedTensor> tensors) {
  const std::string& task = link->remote().task;
  const std::vector<Peer*> peers = PeersNamed(task);
  for (UnconfirmedTensor& tensor : tensors) {
    if (!peers.empty()) peers.front()->SendLost(std::move(tensor));
  }
}

bool Endpoint::Tick(Nanos now, bool excuse) {
  bool busy = false;
  for (const auto& link : AllLinks()) busy |= link->Tick(now, excuse);
  return busy;
}

}  // namespace rdma_transport
