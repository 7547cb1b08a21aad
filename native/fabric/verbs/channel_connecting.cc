// How a channel opens, connects, and learns that the peer is the one asked for.
#include <algorithm>
#include <utility>

#include "fabric/verbs/channel.h"

namespace rdma_transport::fabric::verbs {
namespace {

// Receives reserved for credits; ring.cc explains how many credits can be in flight.
constexpr int kCreditReceives = 40;
// And for the two signals that each queue pair can cause when it fails.
constexpr int kSignalReceives = 2 * kMaxQueuePairs;
constexpr Immediate kRingCheck = {true, false, 0, 0};

}  // namespace

Status VerbsChannel::Open() {
  const VerbsSettings& settings = device_->adapter().settings();
  // A device with shorter queues gets fewer batches, so that each batch still has a receive.
  const std::vector<Adapter*> adapters = device_->ports();
  credit_receives_ = kCreditReceives + (adapters.size() > 1 ? kSignalReceives : 0);
  depth_ = settings.queue_depth;
  for (const Adapter* adapter : adapters) {
    depth_ = std::min(depth_, adapter->port().attributes.max_qp_wr - credit_receives_);
  }
  depth_ = std::max(depth_, 1);
  RDMA_RETURN_IF_ERROR(inbox_.Open(settings.ring, static_cast<uint32_t>(depth_)));
  return ports_.Open(adapters, *inbox_.ring().memory, {depth_, depth_ + credit_receives_, tag_},
                     &windows_);
}

std::string VerbsChannel::Address() const {
  ChannelAddress address = ports_.address();
  address.ring_size = inbox_.first_size();
  address.ring_limit = inbox_.limit();
  address.most_batches = static_cast<uint32_t>(depth_);
  address.token = token_;
  return address.Encode();
}

Status VerbsChannel::Connect(std::string_view peer_address, Role role) {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &peer));
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kNew) {
    return Status(Code::kAborted, "the channel was closed: " + close_reason_.message());
  }
  passive_ = role == Role::kPassive;
  if (passive_) RDMA_RETURN_IF_ERROR(ChargePending(peer.ring_size));
  ChannelPorts::Matched matched;
  RDMA_RETURN_IF_ERROR(ports_.Match(peer, role, &windows_, &matched));
  pairs_ = std::move(matched.pairs);
  targets_ = std::move(matched.targets);
  states_.resize(pairs_.size());
  inbox_.set_registrations(std::move(matched.rings));
  Outbox::Ends ends = {};
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const ChannelAddress::Port& port = peer.ports[peer.queue_pairs[targets_[i]].port];
    if (pairs_[i]->receives() && port.known) ends[i] = {port.ring_address, port.ring_rkey, 1};
  }
  peer_ = std::move(peer);
  const ChannelAddress::Port& peer_port = peer_.ports[peer_.queue_pairs[targets_.front()].port];
  RDMA_RETURN_IF_ERROR(outbox_.Attach(main().adapter(), peer_, ends, main_));
  greeting_ = Greeting(key_, role, token_, peer_.token);
  DescribeRoute();
  BeginRails();
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (states_[i].phase == PairState::Phase::kDown) continue;
    RDMA_RETURN_IF_ERROR(pairs_[i]->Replenish());
    const Status connected = pairs_[i]->Connect(peer_, targets_[i]);
    if (connected.ok()) continue;
    if (!IsFurther(i)) return Status(connected.code(), connected.message() + " (" + route_ + ")");
    LeaveAtFirst(i, connected);
  }
  state_.store(State::kConnecting);
  // Everything that this side sends follows the bindings, so a peer that has received anything may
  // write.
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (states_[i].phase != PairState::Phase::kDown) BindWindow(kRingKey, i);
  }
  check_due_ = true;
  if (!passive_ && !peer_port.ring_window) return Greet(RecordKind::kHello);
  if (!passive_) outbox_.SendCredit(kRingCheck);
  Pump();
  return OkStatus();
}

Status VerbsChannel::Greet(RecordKind kind) {
  check_due_ = false;
  const std::string& shown = greeting_.own();
  const iovec part = {const_cast<char*>(shown.data()), shown.size()};
  return AddRecord(kind, &part, 1, 0, /*signaled=*/true);
}

// Any process can request a channel, and chooses the size of its ring.
Status VerbsChannel::ChargePending(uint64_t peer_ring) {
  const auto bytes = static_cast<int64_t>(peer_ring + inbox_.first_size());
  if (!device_->adapter().ChargePending(bytes)) {
    return Status(Code::kResourceExhausted,
                  "too much memory waits for peers that have not connected yet; try again later");
  }
  pending_bytes_ = bytes;
  return OkStatus();
}

void VerbsChannel::SettlePending() {
  device_->adapter().ChargePending(-std::exchange(pending_bytes_, 0));
}

std::string VerbsChannel::Route() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::string route = route_;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (IsFurther(i) && pairs_[i]->takes_shares()) route += ", " + pairs_[i]->adapter()->Name();
  }
  return route;
}

Status VerbsChannel::HandleGreeting(RecordKind kind, std::string_view shown) {
  if (state_.load() != State::kConnecting || passive_ != (kind == RecordKind::kHello)) {
    return Status(Code::kDataLoss, "a greeting at a wrong time");
  }
  if (!greeting_.IsPeers(shown)) {
    return Status(Code::kPermissionDenied, "the peer did not prove that it is the one asked for");
  }
  const auto handler = handler_.lock();
  if (handler == nullptr) return Status(Code::kCancelled, "the user of this channel has gone");
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() != State::kConnecting) return OkStatus();
    if (passive_) {
      RDMA_RETURN_IF_ERROR(Greet(RecordKind::kAccept));
    } else {
      peer_handles_ = true;
      RDMA_RETURN_IF_ERROR(
          AddRecord(RecordKind::kConnected, nullptr, 0, /*number=*/0, /*signaled=*/true));
    }
    state_.store(State::kConnected);
    SettlePending();
    for (size_t i = 0; i < pairs_.size() && !passive_; ++i) {
      if (states_[i].phase == PairState::Phase::kUntested) TestPair(i);
      const bool left = states_[i].phase == PairState::Phase::kDown && pairs_[i]->number() != 0;
      if (left) device_->ProbeAt(tag_, states_[i].due);
    }
  }
  greeted_ = true;
  handler->OnConnected();
  return OkStatus();
}

// The active side is connected, too.
Status VerbsChannel::HandleConnected() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!passive_ || std::exchange(peer_handles_, true)) {
    return Status(Code::kDataLoss, "a greeting at a wrong time");
  }
  NoteDelivered();
  Attend();
  return OkStatus();
}

// What the peer's card has confirmed is in its ring. The peer handles it, even while it closes the
// channel, unless it closed it before it was connected.
void VerbsChannel::NoteDelivered() {
  if (peer_handles_) delivered_ = outbox_.Delivered();
}

// During connection setup, the first empty credit is a request, or the response to it, that checks
// whether the passive side's ring is writable. An empty write needs no key.
Status VerbsChannel::OnCredit(const Immediate& credit) {
  const bool check =
      credit.units == 0 && credit.batches == 0 && state_.load() == State::kConnecting;
  if (!check || !std::exchange(check_due_, false)) return outbox_.OnCredit(credit);
  if (!passive_) return Greet(RecordKind::kHello);
  outbox_.SendCredit(kRingCheck);
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
