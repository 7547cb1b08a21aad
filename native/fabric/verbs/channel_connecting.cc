// How a channel opens, connects, and learns that the peer is the one asked for.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/verbs/channel.h"
#include "fabric/verbs/reach.h"

namespace rdma_transport::fabric::verbs {
namespace {

// Receives reserved for credits; ring.cc explains how many credits can be in flight.
constexpr int kCreditReceives = 16;

}  // namespace

Status VerbsChannel::Open(uint64_t ring) {
  Adapter& adapter = device_->adapter();
  // A device with shorter queues gets fewer batches, so that each batch still has a receive.
  depth_ = std::max(std::min(adapter.settings().queue_depth,
                             adapter.port().attributes.max_qp_wr - kCreditReceives),
                    1);
  RDMA_RETURN_IF_ERROR(inbox_.Open(&adapter, ring, static_cast<uint32_t>(depth_)));
  auto pair = std::make_shared<QueuePair>(&adapter, tag_);
  RDMA_RETURN_IF_ERROR(pair->Create(depth_, depth_ + kCreditReceives));
  pair_ = std::move(pair);
  return OkStatus();
}

std::string VerbsChannel::Address() const {
  ChannelAddress address;
  DescribePort(device_->adapter().port(), &address);
  std::lock_guard<std::mutex> lock(mu_);
  if (pair_ == nullptr) return std::string();  // it has closed
  address.number = pair_->number();
  address.first_psn = pair_->first_psn();
  address.most_batches = static_cast<uint32_t>(depth_);
  address.ring_size = inbox_.ring()->length();
  address.ring_address = inbox_.ring()->iova();
  address.ring_rkey = inbox_.ring()->rkey();
  address.token = token_;
  return address.Encode();
}

Status VerbsChannel::Connect(std::string_view peer_address, Role role, const Terms& terms) {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &peer));
  Adapter& adapter = device_->adapter();
  RDMA_RETURN_IF_ERROR(Reachable(adapter.port(), peer));
  std::unique_lock<std::mutex> lock(mu_);
  const auto closed = [this] {
    return Status(Code::kAborted, "the channel was closed: " + close_reason_.message());
  };
  if (state_.load() != State::kNew) return closed();
  passive_ = role == Role::kPassive;
  if (passive_) RDMA_RETURN_IF_ERROR(ChargePending(peer.ring_size));
  RDMA_RETURN_IF_ERROR(outbox_.Attach(&adapter, peer));
  if (terms.write_end == WriteEnd::kDelivered) {
    constexpr size_t kPage = 4096;
    RDMA_RETURN_IF_ERROR(
        host::MemoryRegion::Create(0, kPage, Access::kRemoteRead, nullptr, &proof_memory_));
    RDMA_RETURN_IF_ERROR(
        adapter.Register(proof_memory_->address(), kPage, IBV_ACCESS_LOCAL_WRITE, &proof_));
  }
  greeting_ = Greeting(terms.key, role, token_, peer.token);
  Gid gid;
  std::memcpy(gid.bytes.raw, peer.gid.data(), peer.gid.size());
  route_ = adapter.Name() + " " + adapter.port().gid.Text() + " -> " + gid.Text();
  RDMA_RETURN_IF_ERROR(pair_->Replenish());
  // Without the lock, because the kernel may wait for the peer's address.
  connecting_ = true;
  const std::shared_ptr<QueuePair> pair = pair_;
  lock.unlock();
  const Status connected = pair->Connect(peer);
  lock.lock();
  connecting_ = false;
  if (!connected.ok()) {
    return Status(connected.code(), connected.message() + " (" + route_ + ")");
  }
  if (state_.load() != State::kNew) {
    pair->Break();
    return closed();
  }
  state_.store(State::kConnecting);
  return passive_ ? OkStatus() : Greet(RecordKind::kHello);
}

Status VerbsChannel::Greet(RecordKind kind) {
  const std::string& shown = greeting_.own();
  const iovec part = {const_cast<char*>(shown.data()), shown.size()};
  return AddRecord(kind, &part, 1, 0, /*signaled=*/true);
}

// Any process can request a channel, and chooses the size of its ring.
Status VerbsChannel::ChargePending(uint64_t peer_ring) {
  const auto bytes = static_cast<int64_t>(peer_ring + inbox_.ring()->length());
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

}  // namespace rdma_transport::fabric::verbs
