// How a peer is reached: the attempts, and what they decide. The rest of the class is in peer.cc.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "protocol/handshake.h"
#include "protocol/peer.h"

namespace rdma_transport {
namespace {

// The least time between two attempts to reach a peer. Operations in between fail at once.
constexpr Nanos kRetryInterval = 200 * kMillisecond;
// If the peer is alive but no link comes up, the time between attempts doubles up to this.
constexpr Nanos kLongestPause = 30 * kSecond;

}  // namespace

// If nothing is decided, or the decision is due for a retry, begins an attempt. gRPC continues to
// serve while a link is retried.
Peer::Route Peer::RouteLocked(const BootstrapCall& call) {
  const bool begun = MustTryLocked();
  if (begun) {
    attempt_ = std::make_unique<Attempt>();
    attempt_->call = call;
    attempt_->until = Now() + context_.runtime->settings().connect_timeout;
    if (state_ != State::kGrpc) state_ = State::kResolving;
  }
  return {state_, state_ == State::kLinked ? link_ : nullptr, why_, begun};
}

Status Peer::Unreachable(const Status& why) const {
  return Status(Code::kUnavailable, "peer " + task_ + " cannot be reached: " + why.message());
}

bool Peer::MustTryLocked() const {
  if (attempt_ != nullptr) return false;
  if (state_ == State::kIdle) return true;
  return (state_ == State::kUnreachable || state_ == State::kGrpc) && retry_at_ != 0 &&
         Now() >= retry_at_;
}

bool Peer::AwaitsLocked(const Link& link) const {
  return attempt_ != nullptr && !attempt_->awaited.empty() && attempt_->awaited == link.id();
}

// The attempt offers to use a link of the peer, or requests one.
void Peer::Request(bool insist) {
  if (context_.runtime->device() == nullptr) {
    return Decide(State::kGrpc,
                  Status(Code::kFailedPrecondition, context_.runtime->no_fabric_reason()),
                  Again::kNever);
  }
  BootstrapCall call;
  Nanos until = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    call = attempt_->call;
    until = attempt_->until;
  }
  const Nanos left = until - Now();
  if (left < kMillisecond) {
    return Decide(State::kUnreachable,
                  Status(Code::kDeadlineExceeded, "the connection did not come up in time"),
                  Again::kSoon);
  }
  const std::shared_ptr<Link> link = context_.links->Make(task_, until);
  link->set_id(RandomBytes(Pairing::kIdBytes));
  Asked asked = {link, context_.links->pairing().Request(task_, link, insist), insist};
  BootstrapRequest request;
  request.version = kProtocolVersion;
  request.from = *context_.self;
  if (asked.offer.empty()) {
    const Status opened = link->Open();
    if (!opened.ok()) return Decide(State::kGrpc, opened, Again::kLater);
    request.channel = link->channel()->Address();
    request.link = link->id();
    request.insist = insist;
  } else {
    request.offer = asked.offer;
    asked.link = nullptr;
  }
  auto handshake = std::make_shared<AskingHandshake>(context_.runtime->secret_file(), kTaskService);
  const Status ready = handshake->Sign(&request);
  if (!ready.ok()) return Decide(State::kGrpc, ready, Again::kLater);
  call(request.Encode(), left,
       [this, asked, handshake](const Status& status, const std::string& reply) {
         OnReply(asked, handshake.get(), status, reply);
       });
}

void Peer::OnReply(const Asked& asked, AskingHandshake* handshake, const Status& status,
                   const std::string& bytes) {
  if (status.code() == Code::kInvalidArgument || status.code() == Code::kUnimplemented) {
    return Decide(State::kGrpc,
                  Status(Code::kUnimplemented, "the peer does not run the rdma_transport plugin"),
                  Again::kNever);
  }
  // gRPC's own failure, which says nothing of the peer and may pass.
  if (status.code() == Code::kInternal && context_.runtime->settings().allow_fallback) {
    return Decide(State::kGrpc, Status(Code::kUnavailable, status.message()), Again::kLater);
  }
  if (!status.ok()) {
    return Decide(State::kUnreachable, Status(Code::kUnavailable, status.message()), Again::kSoon);
  }
  BootstrapReply reply;
  const Status decoded = BootstrapReply::Decode(bytes, &reply);
  if (!decoded.ok()) return Decide(State::kGrpc, decoded, Again::kNever);
  const Status checked = handshake->Check(reply);
  if (!checked.ok()) return Decide(State::kGrpc, checked, Again::kLater);
  if (asked.offer.empty() && !reply.channel.empty()) {
    return OnChannel(asked.link, reply, handshake->channel_key());
  }
  const bool usable = !asked.insist && reply.use.size() == Pairing::kIdBytes;
  if (usable && (asked.offer.empty() || asked.offer == reply.use)) {
    return Await(reply.use, reply.use_up);
  }
  // The offered link is not the peer's, or no longer.
  if (!asked.offer.empty()) return Request(/*insist=*/true);
  Decide(State::kGrpc, Status(Code::kFailedPrecondition, reply.refusal),
         reply.again ? Again::kLater : Again::kNever);
}

void Peer::OnChannel(const std::shared_ptr<Link>& link, const BootstrapReply& reply,
                     const std::string& key) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    attempt_->opened = link.get();
  }
  const Status connected = context_.links->Connect(link, {task_, reply.from.incarnation}, key,
                                                   reply.channel, fabric::Role::kActive);
  if (connected.ok()) return;  // OnLinkUp() or OnLinkDown() follows
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (attempt_ == nullptr || attempt_->opened != link.get()) return;  // OnLinkDown() decided
    attempt_->opened = nullptr;
  }
  link->channel()->Close(connected);
  // Another link to this peer broke in the meantime and closed this one too.
  const bool closed = connected.code() == Code::kAborted;
  return closed ? Decide(State::kUnreachable, connected, Again::kSoon)
                : Decide(State::kGrpc, connected, Again::kLater);
}

// The peer has confirmed that the link is its own. `up` tells that it is up there.
void Peer::Await(const std::string& id, bool up) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    const Nanos link_until = Now() + context_.links->pairing().link_timeout();
    attempt_->awaited = id;
    attempt_->await_until = std::min(link_until, attempt_->until);
  }
  // From here on, the link's own events find this peer, too.
  std::shared_ptr<Link> link;
  const Pairing::Incoming found = context_.links->pairing().Find(task_, id, &link);
  if (found == Pairing::Incoming::kUp) {
    return OnLinkUp(link, /*shared=*/true);  // if it has ended since, OnLinkDown() follows
  }
  // A link that was up there was here before, so if it is unknown, it has ended.
  if (found == Pairing::Incoming::kEnded || (found == Pairing::Incoming::kUnknown && up)) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (attempt_ == nullptr || attempt_->awaited != id) return;  // the link's event came first
      attempt_->awaited.clear();
    }
    return Request(/*insist=*/true);
  }
  context_.runtime->ArmTimer();
}

bool Peer::Tick() {
  bool insist = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    insist = attempt_ != nullptr && !attempt_->awaited.empty();
    if (insist) {
      if (Now() < attempt_->await_until) return true;
      attempt_->awaited.clear();
    } else {
      if (parked_.empty() || context_.runtime->settings().allow_fallback) return false;
      if (!RouteLocked(parked_.back().call).begun) return true;
    }
  }
  Request(insist);
  return true;
}

void Peer::OnLinkUp(const std::shared_ptr<Link>& link, bool shared) {
  std::vector<PlannedEdge> planned;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const bool opened = attempt_ != nullptr && attempt_->opened == link.get();
    if (!opened && !(shared && AwaitsLocked(*link) && link->up())) {
      const bool refused = state_ == State::kGrpc || state_ == State::kUnreachable;
      if (attempt_ == nullptr && refused) state_ = State::kIdle;
      return;
    }
    attempt_->awaited.clear();
    link_ = link;
    for (const auto& [owner, edges] : planned_) {
      planned.insert(planned.end(), edges.begin(), edges.end());
    }
  }
  Offer(planned, link.get());
  Decide(State::kLinked, OkStatus(), Again::kNever, link);
}

bool Peer::OnLinkDown(const std::shared_ptr<Link>& link, const Status& status) {
  bool insist = false;
  std::vector<std::shared_ptr<memory::SlotPool>> pools;  // dropped after unlocking
  {
    std::lock_guard<std::mutex> lock(mu_);
    const bool opened = attempt_ != nullptr && attempt_->opened == link.get();
    insist = link_ == link || AwaitsLocked(*link);
    if (!opened && !insist) return false;
    link_ = nullptr;
    if (attempt_ == nullptr) {
      // Keeps no memory for a peer that may not return; tracing finds the sites again.
      for (auto& [owner, edges] : planned_) {
        for (PlannedEdge& edge : edges) {
          for (auto& pool : edge.pools) pools.push_back(std::move(pool));
          edge.pools.clear();
        }
      }
      state_ = State::kIdle;
      why_ = status;
      last_error_ = status.message();
      return true;
    }
    attempt_->opened = nullptr;
    attempt_->awaited.clear();
  }
  if (insist) {
    Request(/*insist=*/true);
  } else if (context_.runtime->settings().allow_fallback) {
    // The peer answered the bootstrap, so it is alive and only the route failed.
    Decide(State::kGrpc, status, Again::kLater);
  } else {
    Decide(State::kUnreachable, status, Again::kSoon);
  }
  return true;
}

// Ends an attempt. `link` is that of kLinked.
void Peer::Decide(State state, const Status& status, Again again,
                  const std::shared_ptr<Link>& link) {
  std::vector<Parked> parked;
  std::unique_ptr<Attempt> attempt;  // destroyed after unlocking
  bool news = true;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (link != nullptr) {
      if (link_ != link) return;  // it has ended, and the attempt goes on
      ++links_;
      linked_at_ = link->since();
    }
    attempt.swap(attempt_);
    news = state_ != state || why_.message() != status.message();
    state_ = state;
    why_ = status;
    if (!status.ok()) last_error_ = status.message();
    pause_ = again == Again::kLater ? std::clamp(2 * pause_, kRetryInterval, kLongestPause)
                                    : kRetryInterval;
    retry_at_ = again == Again::kNever ? 0 : Now() + pause_;
    if (state != State::kUnreachable || !IsPatientLocked(Now())) {
      parked = std::exchange(parked_, {});
    }
  }
  if (link != nullptr) {
    Log(LogLevel::kInfo, "peer " + task_ + " transport=" + link->channel()->fabric() + " (" +
                             link->channel()->Route() + ")");
  } else if (state == State::kGrpc) {
    Log(news ? LogLevel::kWarning : LogLevel::kDebug,
        "peer " + task_ + " transport=grpc: " + status.message());
  } else {
    Log(LogLevel::kDebug, Unreachable(status).message());
  }
  Flush(std::move(parked));
  for (const auto& recv : waiting_.TakeAll(OkStatus())) {
    Status refused;
    if (link != nullptr) {
      if (!link->AddPending(recv, &refused)) FailAll({recv}, refused);
    } else if (state == State::kGrpc) {
      context_.fallback->Receive("peer " + task_, recv, status.message());
    } else {
      FailAll({recv}, Unreachable(status));
    }
  }
  if (link != nullptr) context_.runtime->ArmTimer();
}

}  // namespace rdma_transport
