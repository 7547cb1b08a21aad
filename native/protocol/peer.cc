#include "protocol/peer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "protocol/staging.h"
#include "protocol/trace.h"

namespace rdma_transport {

// --- Sending ---

Status Peer::Send(Outgoing tensor, const BootstrapCall& call, FallbackSend* fallback,
                  std::optional<Mode>* mode) {
  std::optional<Mode> unused;
  if (mode == nullptr) mode = &unused;
  Route route;
  bool parked = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    route = RouteLocked(call);
    parked = route.state == State::kResolving ||
             (route.state == State::kUnreachable && IsPatientLocked(Now()));
    if (parked) ParkLocked(std::move(tensor), call, fallback);
  }
  if (route.begun) Request(/*insist=*/false);
  if (parked && !context_.runtime->settings().allow_fallback) context_.runtime->ArmTimer();
  if (route.link != nullptr) return SendOn(route.link, &tensor, fallback, mode);
  if (parked) return OkStatus();
  return SendElsewhere(tensor, route.why.message(), fallback, mode);
}

bool Peer::by_grpc() const {
  std::lock_guard<std::mutex> lock(mu_);
  return state_ == State::kGrpc && !MustTryLocked();
}

Status Peer::SendOn(const std::shared_ptr<Link>& link, Outgoing* tensor, FallbackSend* fallback,
                    std::optional<Mode>* mode) {
  if (tensor->not_carried != nullptr) {
    return SendElsewhere(*tensor, tensor->not_carried, fallback, mode);
  }
  const bool changes = tensor->mutable_source;
  UnackedTensor kept = {tensor->step, std::string(tensor->key), tensor->bytes, nullptr};
  const SendOutcome outcome = link->Send(tensor);
  if (outcome.elsewhere != nullptr) {
    return SendElsewhere(*tensor, outcome.elsewhere, fallback, mode);
  }
  *mode = outcome.mode;
  return FinishSend(link, outcome, std::move(kept), changes, fallback);
}

std::shared_ptr<Link> Peer::LinkIfUp() const {
  std::lock_guard<std::mutex> lock(mu_);
  return state_ == State::kLinked ? link_ : nullptr;
}

std::string Peer::transport() const {
  const std::shared_ptr<Link> link = LinkIfUp();
  return link == nullptr ? "grpc" : link->channel()->fabric();
}

bool Peer::ReadsDevices() const {
  const std::shared_ptr<Link> link = LinkIfUp();
  return link != nullptr && !link->channel()->Copies();
}

Status Peer::SendFromDevice(Outgoing tensor, FallbackSend* fallback, bool* sent) {
  const std::shared_ptr<Link> link = LinkIfUp();
  *sent = link != nullptr;
  if (link == nullptr) return OkStatus();
  UnackedTensor kept = {tensor.step, std::string(tensor.key), tensor.bytes, nullptr};
  const SendOutcome outcome = link->Send(&tensor);
  *sent = outcome.elsewhere == nullptr;
  if (!*sent) return OkStatus();
  return FinishSend(link, outcome, std::move(kept), /*changes=*/false, fallback);
}

// Keeps what a link sent until it has arrived. `changes` is Outgoing::mutable_source.
Status Peer::FinishSend(const std::shared_ptr<Link>& link, const SendOutcome& outcome,
                        UnackedTensor kept, bool changes, FallbackSend* fallback) {
  const bool broken = !outcome.silent && outcome.status.code() == Code::kUnavailable;
  if (!outcome.status.ok() && !broken) {
    return Status(outcome.status.code(),
                  "sending to peer " + task_ + ": " + outcome.status.message());
  }
  kept.tensor = fallback->Keep(/*copy=*/changes);
  if (broken || !link->KeepUntilDelivered(outcome.number, &kept)) {
    context_.fallback->SendLost(traffic_, std::move(kept));
  }
  return OkStatus();
}

Status Peer::SendElsewhere(const Outgoing& tensor, const std::string& reason,
                           FallbackSend* fallback, std::optional<Mode>* mode) {
  *mode = Mode::kGrpc;
  return context_.fallback->Send(traffic_, tensor.step, tensor.key, tensor.bytes, reason, fallback);
}

void Peer::ParkLocked(Outgoing tensor, const BootstrapCall& call, FallbackSend* fallback) {
  const bool changes = tensor.mutable_source;
  // If it cannot be staged, only the copy that `fallback` keeps is left.
  if (changes && tensor.bytes > 0 &&
      !Stage(context_.runtime->arena(), context_.runtime->slots(), /*site=*/{}, &tensor)) {
    tensor.not_carried = "no memory in the arena for a copy";
  }
  Parked parked;
  parked.key = std::string(tensor.key);
  parked.dims.assign(tensor.dims, tensor.dims + tensor.rank);
  parked.tensor = std::move(tensor);
  parked.fallback = fallback->Keep(/*copy=*/changes);
  parked.call = call;
  parked.until = Now() + context_.runtime->settings().connect_timeout;
  parked_.push_back(std::move(parked));
}

// A peer that is not up yet, or restarts, is no reason to fail a step that may not use gRPC: over
// gRPC, it would not fail either.
bool Peer::IsPatientLocked(Nanos now) const {
  return !context_.runtime->settings().allow_fallback &&
         (parked_.empty() || now < parked_.front().until);
}

void Peer::Flush(std::vector<Parked> parked) {
  for (Parked& entry : parked) {
    entry.tensor.key = entry.key;
    entry.tensor.dims = entry.dims.data();
    std::shared_ptr<Link> link;
    std::string reason;
    {
      std::lock_guard<std::mutex> lock(mu_);
      link = state_ == State::kLinked ? link_ : nullptr;
      reason = why_.message();
    }
    std::optional<Mode> mode;
    const Status status = link != nullptr
                              ? SendOn(link, &entry.tensor, entry.fallback.get(), &mode)
                              : SendElsewhere(entry.tensor, reason, entry.fallback.get(), &mode);
    if (status.ok()) continue;
    // The sender has already continued.
    Log(LogLevel::kWarning, status.message());
    entry.fallback->Fail(status);
  }
}

// --- Planning ---

void Peer::Connect(const BootstrapCall& call) {
  bool begun = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    begun = RouteLocked(call).begun;
  }
  if (begun) Request(/*insist=*/false);
}

void Peer::Plan(const std::string& owner, std::vector<PlannedEdge> edges) {
  std::shared_ptr<Link> link;
  {
    std::lock_guard<std::mutex> lock(mu_);
    planned_[owner] = edges;
    link = link_;
  }
  if (link != nullptr) Offer(edges, link.get());
}

void Peer::Offer(const std::vector<PlannedEdge>& edges, Link* link) {
  for (const PlannedEdge& edge : edges) {
    if (!edge.read_in_place || link->channel()->Copies()) link->static_edges().Offer(edge);
  }
}

void Peer::Unplan(const std::string& owner) {
  std::vector<PlannedEdge> gone;
  std::shared_ptr<Link> link;
  {
    std::lock_guard<std::mutex> lock(mu_);
    auto it = planned_.lower_bound(owner);
    while (it != planned_.end() && it->first.compare(0, owner.size(), owner) == 0) {
      for (PlannedEdge& edge : it->second) gone.push_back(std::move(edge));
      it = planned_.erase(it);
    }
    gone.erase(
        std::remove_if(gone.begin(), gone.end(),
                       [this](const PlannedEdge& edge) { return HasPlanLocked(edge.spec.key); }),
        gone.end());
    link = link_;
  }
  if (link == nullptr) return;
  for (const PlannedEdge& edge : gone) link->static_edges().Withdraw(edge.spec.key);
}

bool Peer::HasPlanLocked(const std::string& key) const {
  for (const auto& [owner, edges] : planned_) {
    for (const PlannedEdge& edge : edges) {
      if (edge.spec.key == key) return true;
    }
  }
  return false;
}

// --- Receiving ---

void Peer::Wait(const std::shared_ptr<PendingRecv>& recv, const BootstrapCall& call) {
  Route route;
  Status refused;
  {
    std::lock_guard<std::mutex> lock(mu_);
    route = RouteLocked(call);
    if (route.state == State::kResolving) waiting_.Add(recv, &refused);
    if (route.state == State::kUnreachable) refused = Unreachable(why_);
  }
  if (route.begun) Request(/*insist=*/false);
  if (route.state == State::kGrpc) {
    return context_.fallback->Receive("peer " + task_, recv, route.why.message());
  }
  if (route.link != nullptr) {
    route.link->AddPending(recv, &refused);
    context_.runtime->ArmTimer();
  }
  if (!refused.ok()) FailAll({recv}, refused);
}

void Peer::Watch(const std::shared_ptr<PendingRecv>& recv) {
  Status refused;
  std::shared_ptr<Link> link;
  {
    std::lock_guard<std::mutex> lock(mu_);
    link = state_ == State::kLinked ? link_ : nullptr;
    if (state_ == State::kResolving) waiting_.Add(recv, &refused);
  }
  if (link == nullptr) return;
  if (!link->AddPending(recv, &refused)) FailAll({recv}, refused);
  context_.runtime->ArmTimer();
}

std::function<void()> Peer::Call(CallMethod method, std::string_view request,
                                 const std::shared_ptr<PendingCall>& call) {
  if (!context_.runtime->settings().calls_over_fabric) return nullptr;
  std::shared_ptr<Link> link = LinkIfUp();
  const uint64_t number = link == nullptr ? 0 : link->Call(method, request, call);
  if (number == 0) return nullptr;
  return [link = std::move(link), number] { link->CancelCall(number); };
}

void Peer::ReceivedByGrpc(const PendingRecv& recv, int64_t step, std::string_view key,
                          uint64_t bytes, Nanos begin) {
  traffic_->Received(Mode::kGrpc).Add(bytes);
  traffic_->Waited(Mode::kGrpc).Add(Now() - recv.began());
  if (!Trace::On()) return;
  Trace::HandedOver(Trace::Arrived(id(), begin, step, key, /*suffix=*/{}, bytes, Mode::kGrpc));
}

// --- Reports ---

PeerStats Peer::Stats() const {
  static constexpr const char* kNames[] = {"idle", "connecting", "", "grpc", "unreachable"};
  PeerStats stats;
  stats.local = id()->local;
  stats.task = task_;
  stats.address = address_;
  stats.traffic = traffic_;
  std::shared_ptr<Link> link;
  {
    std::lock_guard<std::mutex> lock(mu_);
    stats.linked = state_ == State::kLinked;
    link = stats.linked ? link_ : nullptr;
    stats.transport = kNames[static_cast<int>(state_)];
    stats.reason = why_.message();
    stats.lost = links_ > 0 && !stats.linked;
    stats.links = links_;
    stats.linked_at = linked_at_;
    stats.last_error = last_error_;
  }
  if (link != nullptr) link->Describe(&stats);
  return stats;
}

}  // namespace rdma_transport
