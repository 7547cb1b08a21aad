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

// If nothing is decided, or the decision is due for a retry, the caller must resolve it
// (`resolve`). gRPC continues to serve while a link is retried.
Peer::Route Peer::RouteLocked() {
  const bool resolve = NeedsResolvingLocked();
  if (resolve) trying_ = true;
  if (resolve && state_ != State::kGrpc) state_ = State::kResolving;
  return {state_, state_ == State::kLinked ? link_ : nullptr, why_, resolve};
}

Status Peer::Unreachable(const Status& why) const {
  return Status(Code::kUnavailable, "peer " + task_ + " cannot be reached: " + why.message());
}

bool Peer::NeedsResolvingLocked() const {
  if (trying_) return false;
  if (state_ == State::kIdle) return true;
  return (state_ == State::kUnreachable || state_ == State::kGrpc) && retry_at_ != 0 &&
         Now() >= retry_at_;
}

// Starts an attempt. It ends in Decide().
void Peer::Resolve(const BootstrapCall& call) {
  if (context_.runtime->device() == nullptr) {
    return Decide(State::kGrpc,
                  Status(Code::kFailedPrecondition, context_.runtime->no_fabric_reason()),
                  Again::kNever);
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    attempt_ = call;
    attempt_until_ = Now() + context_.runtime->settings().connect_timeout;
  }
  Request(/*insist=*/false);
}

// Offers to use a link of the peer, or requests one.
void Peer::Request(bool insist) {
  BootstrapCall call;
  Nanos until = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    call = attempt_;
    until = attempt_until_;
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
  SetOpened(link.get());
  const Status connected = context_.links->Connect(link, {task_, reply.from.incarnation}, key,
                                                   reply.channel, fabric::Role::kActive);
  if (connected.ok()) return;  // OnLinkUp() or OnLinkDown() follows
  SetOpened(nullptr);
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
    awaited_ = id;
    await_until_ = std::min(Now() + context_.links->pairing().link_timeout(), attempt_until_);
  }
  // From here on, the link's own events find this peer, too.
  std::shared_ptr<Link> link;
  switch (context_.links->pairing().Find(task_, id, &link)) {
    case Pairing::Incoming::kUp:
      Adopt(link);  // if it has ended since, OnLinkDown() follows
      return;
    case Pairing::Incoming::kComing:
      break;
    case Pairing::Incoming::kUnknown:
      if (up) return Insist(id);  // it was here before it was up there, so it has ended
      break;
    case Pairing::Incoming::kEnded:
      return Insist(id);
  }
  context_.runtime->ArmTimer();
}

// Stops waiting for the link, unless that has happened.
void Peer::Insist(const std::string& id) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (awaited_.empty() || awaited_ != id) return;
    awaited_.clear();
  }
  Request(/*insist=*/true);
}

bool Peer::Adopt(const std::shared_ptr<Link>& link) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (awaited_.empty() || awaited_ != link->id() || !link->up()) return false;
    awaited_.clear();
    link_ = link;
  }
  UseLink(link);
  return true;
}

bool Peer::Tick() {
  std::string late;
  BootstrapCall call;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!awaited_.empty()) {
      if (Now() < await_until_) return true;
      late = awaited_;
    } else {
      if (parked_.empty() || retry_ == nullptr) return false;
      if (!RouteLocked().resolve) return true;
      call = retry_;
    }
  }
  late.empty() ? Resolve(call) : Insist(late);
  return true;
}

bool Peer::Opened(const Link& link) const {
  std::lock_guard<std::mutex> lock(mu_);
  return opened_ == &link;
}

void Peer::SetOpened(const Link* link) {
  std::lock_guard<std::mutex> lock(mu_);
  opened_ = link;
}

void Peer::OnLinkUp(const std::shared_ptr<Link>& link) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    link_ = link;
  }
  UseLink(link);
}

void Peer::UseLink(const std::shared_ptr<Link>& link) {
  std::vector<PlannedEdge> planned;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [owner, edges] : planned_) {
      planned.insert(planned.end(), edges.begin(), edges.end());
    }
  }
  Offer(planned, link.get());
  Decide(State::kLinked, OkStatus(), Again::kNever, link);
}

bool Peer::OnLinkDown(const std::shared_ptr<Link>& link, const Status& status) {
  bool was_trying = false;
  bool adopting = false;
  std::vector<std::shared_ptr<memory::SlotPool>> pools;  // dropped after unlocking
  {
    std::lock_guard<std::mutex> lock(mu_);
    const bool awaited = !awaited_.empty() && awaited_ == link->id();
    if (opened_ != link.get() && link_ != link && !awaited) return false;
    if (opened_ == link.get()) opened_ = nullptr;
    if (state_ == State::kLinked && link_ == link) {
      // Keeps no memory for a peer that may not return; tracing finds the sites again.
      for (auto& [owner, edges] : planned_) {
        for (PlannedEdge& edge : edges) {
          for (auto& pool : edge.pools) pools.push_back(std::move(pool));
          edge.pools.clear();
        }
      }
      state_ = State::kIdle;
      link_ = nullptr;
      why_ = status;
      last_error_ = status.message();
    } else if (link_ == link || awaited) {
      adopting = true;
      link_ = nullptr;
      awaited_.clear();
    } else {
      was_trying = trying_;
    }
  }
  if (adopting) Request(/*insist=*/true);
  if (!was_trying) return true;
  // The peer answered the bootstrap, so it is alive and only the route failed.
  if (context_.runtime->settings().allow_fallback) {
    Decide(State::kGrpc, status, Again::kLater);
  } else {
    Decide(State::kUnreachable, status, Again::kSoon);
  }
  return true;
}

void Peer::Reconsider() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!trying_ && (state_ == State::kGrpc || state_ == State::kUnreachable)) state_ = State::kIdle;
}

// Ends an attempt. `link` is that of kLinked.
void Peer::Decide(State state, const Status& status, Again again,
                  const std::shared_ptr<Link>& link) {
  std::vector<Parked> parked;
  BootstrapCall retry;  // destroyed after unlocking, like the attempt
  BootstrapCall attempt;
  bool news = true;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (link != nullptr) {
      if (link_ != link) return;  // it has ended, and the attempt goes on
      ++links_;
      linked_at_ = link->since();
    }
    attempt = std::exchange(attempt_, nullptr);
    news = state_ != state || why_.message() != status.message();
    state_ = state;
    why_ = status;
    if (!status.ok()) last_error_ = status.message();
    trying_ = false;
    pause_ = again == Again::kLater ? std::clamp(2 * pause_, kRetryInterval, kLongestPause)
                                    : kRetryInterval;
    retry_at_ = again == Again::kNever ? 0 : Now() + pause_;
    if (state != State::kUnreachable || !IsPatientLocked(Now())) {
      parked = std::exchange(parked_, {});
      retry = std::exchange(retry_, nullptr);
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
