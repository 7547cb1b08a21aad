#include "protocol/peer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "protocol/endpoint.h"
#include "protocol/staging.h"

namespace rdma_transport {
namespace {

// A peer that could not be reached is not asked again sooner; what needs it meanwhile fails at
// once.
constexpr Nanos kRetryInterval = 200 * kMillisecond;

}  // namespace

// --- Sending ---

Status Peer::Send(Outgoing tensor, const BootstrapCall& call, ByGrpc* by_grpc) {
  Route route;
  {
    std::lock_guard<std::mutex> lock(mu_);
    route = RouteLocked();
    if (route.state == State::kResolving) Park(std::move(tensor), by_grpc);
  }
  if (route.link != nullptr) return SendOn(route.link, &tensor, by_grpc);
  if (route.state != State::kResolving) return SendElsewhere(tensor, route.why.message(), by_grpc);
  if (route.resolve) Resolve(call);
  return OkStatus();
}

Status Peer::SendOn(const std::shared_ptr<Link>& link, Outgoing* tensor, ByGrpc* by_grpc) {
  if (tensor->not_carried != nullptr) return SendElsewhere(*tensor, tensor->not_carried, by_grpc);
  const SendOutcome outcome = link->Send(tensor);
  if (outcome.elsewhere != nullptr) return SendElsewhere(*tensor, outcome.elsewhere, by_grpc);
  if (!outcome.status.ok()) {
    return Status(outcome.status.code(),
                  "sending to peer " + task_ + ": " + outcome.status.message());
  }
  return OkStatus();
}

Status Peer::SendElsewhere(const Outgoing& tensor, const std::string& reason, ByGrpc* by_grpc) {
  Counters& counters = GlobalCounters();
  if (!endpoint_->settings().allow_fallback) {
    counters.errors.Add("fallback_forbidden");
    return Status(Code::kFailedPrecondition,
                  "a tensor for peer " + task_ + " would leave the fabric (" + reason +
                      "), and RDMA_TRANSPORT_FALLBACK=forbid; edge: " + std::string(tensor.key));
  }
  counters.Sent(Path::kGrpc).Add(tensor.bytes);
  counters.fallback_reasons.Add(reason);
  // In this order: a link that comes up later finds the ledger, one that is up gets the notice.
  endpoint_->ledger().Add(task_, tensor.step, tensor.key);
  const Status status = by_grpc->Send();
  for (const auto& link : endpoint_->LinksTo(task_))
    link->SendPull(tensor.step, tensor.key, reason);
  return status;
}

// With mu_ held.
void Peer::Park(Outgoing tensor, ByGrpc* by_grpc) {
  if (tensor.mutable_source && tensor.bytes > 0)
    Stage(endpoint_->arena(), endpoint_->slots(), /*site=*/{}, &tensor);
  Parked parked;
  parked.key = std::string(tensor.key);
  parked.dims.assign(tensor.dims, tensor.dims + tensor.rank);
  parked.tensor = std::move(tensor);
  parked.by_grpc = by_grpc->Keep();
  parked_.push_back(std::move(parked));
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
    // The step learns of an error where it waits: here nobody listens any more.
    const Status status = link != nullptr
                              ? SendOn(link, &entry.tensor, entry.by_grpc.get())
                              : SendElsewhere(entry.tensor, reason, entry.by_grpc.get());
    if (!status.ok()) Log(LogLevel::kWarning, status.message());
  }
}

// --- Planning ---

void Peer::Plan(const std::string& owner, std::vector<PlannedEdge> edges,
                const BootstrapCall& call) {
  Route route;
  {
    std::lock_guard<std::mutex> lock(mu_);
    planned_[owner] = edges;
    route = RouteLocked();
  }
  if (route.link != nullptr) {
    for (const PlannedEdge& edge : edges) route.link->static_edges().Offer(edge);
  }
  if (route.resolve) Resolve(call);
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
    link = state_ == State::kLinked ? link_ : nullptr;
  }
  if (link == nullptr) return;
  for (const PlannedEdge& edge : gone) link->static_edges().Forget(edge.spec.key);
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

void Peer::Wait(const std::shared_ptr<Waiter>& waiter, const BootstrapCall& call) {
  Route route;
  Status refused;
  {
    std::lock_guard<std::mutex> lock(mu_);
    route = RouteLocked();
    if (route.state == State::kResolving) waiting_.Add(waiter, &refused);
    if (route.state == State::kUnreachable) refused = UnreachableLocked();
  }
  if (route.state == State::kGrpc) {
    return endpoint_->UseGrpc("peer " + task_, waiter, route.why.message());
  }
  if (route.link != nullptr) {
    route.link->AddWaiter(waiter, &refused);
    endpoint_->ArmTimer();
  }
  if (!refused.ok()) FailAll({waiter}, refused);
  if (route.resolve) Resolve(call);
}

void Peer::Watch(const std::shared_ptr<Waiter>& waiter) {
  Status refused;
  std::shared_ptr<Link> link;
  {
    std::lock_guard<std::mutex> lock(mu_);
    link = state_ == State::kLinked ? link_ : nullptr;
    if (state_ == State::kResolving) waiting_.Add(waiter, &refused);
  }
  if (link == nullptr) return;
  if (!link->AddWaiter(waiter, &refused)) FailAll({waiter}, refused);
  endpoint_->ArmTimer();
}

// --- Deciding ---

// Whoever finds nothing decided makes it so that he is the one who sees to it (`resolve`).
Peer::Route Peer::RouteLocked() {
  const bool resolve = NeedsResolvingLocked();
  if (resolve) state_ = State::kResolving;
  return {state_, state_ == State::kLinked ? link_ : nullptr, why_, resolve};
}

Status Peer::UnreachableLocked() const {
  return Status(Code::kUnavailable, "peer " + task_ + " cannot be reached: " + why_.message());
}

bool Peer::NeedsResolvingLocked() const {
  return state_ == State::kIdle || (state_ == State::kUnreachable && Now() >= retry_at_);
}

void Peer::Resolve(const BootstrapCall& call) {
  if (endpoint_->device() == nullptr) {
    return Decide(State::kGrpc, Status(Code::kFailedPrecondition, endpoint_->no_fabric_reason()));
  }
  std::shared_ptr<Link> link = endpoint_->NewLink();
  const Status opened = link->Open();
  if (!opened.ok()) return Decide(State::kGrpc, opened);
  BootstrapRequest request;
  request.version = kProtocolVersion;
  request.from = endpoint_->identity();
  request.fabric = endpoint_->device()->fabric();
  request.channel = link->channel()->Address();
  call(request.Encode(), endpoint_->settings().connect_timeout,
       [this, link](const Status& status, const std::string& reply) {
         OnReply(link, status, reply);
       });
}

void Peer::OnReply(const std::shared_ptr<Link>& link, const Status& status,
                   const std::string& bytes) {
  if (status.code() == Code::kInvalidArgument || status.code() == Code::kUnimplemented ||
      status.code() == Code::kInternal) {
    return Decide(State::kGrpc,
                  Status(Code::kUnimplemented, "it runs without the plugin (rdma_transport)"));
  }
  if (!status.ok()) {
    return Decide(State::kUnreachable, Status(Code::kUnavailable, status.message()));
  }
  BootstrapReply reply;
  const Status decoded = BootstrapReply::Decode(bytes, &reply);
  if (!decoded.ok()) return Decide(State::kGrpc, decoded);
  if (reply.channel.empty()) {
    return Decide(State::kGrpc, Status(Code::kFailedPrecondition, reply.refusal));
  }
  link->set_remote({task_, reply.from.incarnation});
  endpoint_->AddLink(link, this);
  const Status connected = link->channel()->Connect(reply.channel, fabric::Role::kActive);
  if (!connected.ok()) {
    endpoint_->RemoveLink(link);
    link->channel()->Close(connected);
    return Decide(State::kGrpc, Status(Code::kFailedPrecondition,
                                       "it is on another host, or in another network namespace (" +
                                           connected.message() + ")"));
  }
  endpoint_->ArmTimer();  // OnLinkUp() or OnLinkDown() follows
}

void Peer::OnLinkUp(const std::shared_ptr<Link>& link) {
  std::vector<PlannedEdge> planned;
  {
    std::lock_guard<std::mutex> lock(mu_);
    link_ = link;
    was_linked_ = true;
    for (const auto& [owner, edges] : planned_) {
      planned.insert(planned.end(), edges.begin(), edges.end());
    }
  }
  for (const PlannedEdge& edge : planned) link->static_edges().Offer(edge);
  Decide(State::kLinked, OkStatus());
}

void Peer::OnLinkDown(const std::shared_ptr<Link>& link, const Status& status) {
  bool was_resolving = false;
  std::vector<std::shared_ptr<memory::SlotPool>> pools;  // let go without the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_ == State::kLinked && link_ == link) {
      // Memory is not kept for a peer that may not come back; tracing finds the sites again.
      for (auto& [owner, edges] : planned_) {
        for (PlannedEdge& edge : edges) {
          for (auto& pool : edge.pools) pools.push_back(std::move(pool));
          edge.pools.clear();
        }
      }
      state_ = State::kIdle;
      link_ = nullptr;
      why_ = status;
    } else if (state_ == State::kResolving) {
      was_resolving = true;
    }
  }
  if (was_resolving) Decide(State::kUnreachable, status);
}

void Peer::Reconsider() {
  std::lock_guard<std::mutex> lock(mu_);
  if (state_ == State::kGrpc || state_ == State::kUnreachable) state_ = State::kIdle;
}

void Peer::Decide(State state, const Status& status) {
  std::vector<Parked> parked;
  std::shared_ptr<Link> link;
  {
    std::lock_guard<std::mutex> lock(mu_);
    state_ = state;
    why_ = status;
    retry_at_ = Now() + kRetryInterval;
    parked = std::exchange(parked_, {});
    link = state == State::kLinked ? link_ : nullptr;
  }
  if (link != nullptr) {
    Log(LogLevel::kInfo, "peer " + task_ + " path=" + endpoint_->device()->fabric() +
                             " (same host, proved by its local socket)");
  } else if (state == State::kGrpc) {
    Log(LogLevel::kInfo, "peer " + task_ + " path=grpc: " + status.message());
  } else {
    Log(LogLevel::kDebug, "peer " + task_ + " cannot be reached: " + status.message());
  }
  Flush(std::move(parked));
  for (const auto& waiter : waiting_.TakeAll(OkStatus())) {
    Status refused;
    if (link != nullptr) {
      if (!link->AddWaiter(waiter, &refused)) FailAll({waiter}, refused);
    } else if (state == State::kGrpc) {
      endpoint_->UseGrpc("peer " + task_, waiter, status.message());
    } else {
      FailAll({waiter}, Status(Code::kUnavailable,
                               "peer " + task_ + " cannot be reached: " + status.message()));
    }
  }
  if (link != nullptr) endpoint_->ArmTimer();
}

PeerStats Peer::Stats() const {
  static constexpr const char* kNames[] = {"idle", "connecting", "", "grpc", "unreachable"};
  std::lock_guard<std::mutex> lock(mu_);
  PeerStats stats;
  stats.task = task_;
  stats.path =
      state_ == State::kLinked ? endpoint_->device()->fabric() : kNames[static_cast<int>(state_)];
  stats.reason = state_ == State::kLinked ? "same host" : why_.message();
  stats.lost = was_linked_ && state_ != State::kLinked;
  if (link_ != nullptr) stats.incarnation = link_->remote().incarnation;
  return stats;
}

}  // namespace rdma_transport
