#include "fabric/verbs/channel_ports.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fabric/verbs/rails.h"

namespace rdma_transport::fabric::verbs {

Status ChannelPorts::Open(const std::vector<Adapter*>& adapters, const Region& ring,
                          const Queues& queues, Windows* windows) {
  Status first;
  const size_t wanted = static_cast<size_t>(adapters.front()->settings().queue_pairs);
  const size_t count = std::min(wanted, std::max(kMaxQueuePairs / adapters.size(), size_t{1}));
  for (Adapter* adapter : adapters) {
    Queues next = queues;
    next.tag += static_cast<uint32_t>(pairs_.size());
    Prepared prepared;
    const Status status = Prepare(adapter, ring, count, next, &prepared);
    if (!status.ok()) {
      if (first.ok()) first = status;
      Log(LogLevel::kDebug, "a channel without " + adapter->Name() + ": " + status.message());
      continue;
    }
    Describe(*adapter, prepared);
    rings_.push_back(std::move(prepared.ring));
    for (auto& pair : prepared.pairs) pairs_.push_back(std::move(pair));
  }
  if (pairs_.empty()) return first;
  RDMA_RETURN_IF_ERROR(windows->Make(kRingKey, rings_));
  for (size_t i = 0; i < rings_.size(); ++i) {
    const Window* window = windows->Of(kRingKey, i);
    if (window == nullptr) continue;
    address_.ports[i].ring_window = true;
    address_.ports[i].ring_rkey = window->rkey();
  }
  return OkStatus();
}

Status ChannelPorts::Prepare(Adapter* adapter, const Region& ring, size_t count,
                             const Queues& queues, Prepared* prepared) {
  RDMA_RETURN_IF_ERROR(adapter->Expose(ring.address(), ring.length(),
                                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                                       &prepared->ring));
  for (size_t i = 0; i < count; ++i) {
    const uint32_t tag = queues.tag + static_cast<uint32_t>(i);
    prepared->pairs.push_back(std::make_unique<QueuePair>(adapter, tag));
    RDMA_RETURN_IF_ERROR(
        prepared->pairs.back()->Create(queues.depth, i == 0 ? queues.receives : 0));
  }
  return OkStatus();
}

void ChannelPorts::Describe(const Adapter& adapter, const Prepared& prepared) {
  ChannelAddress::Port port = AddressOf(adapter.port());
  port.active = adapter.active();
  port.ring_address = prepared.ring->iova();
  port.ring_rkey = prepared.ring->rkey();
  const auto index = static_cast<uint32_t>(address_.ports.size());
  address_.ports.push_back(port);
  for (const auto& pair : prepared.pairs) {
    address_.queue_pairs.push_back({pair->number(), pair->first_psn(), index});
  }
}

Status ChannelPorts::Match(const ChannelAddress& peer, Role role, Windows* windows,
                           std::vector<std::unique_ptr<QueuePair>>* pairs,
                           std::vector<size_t>* targets) {
  const std::vector<ConnectedPair> matched = MatchQueuePairs(address_, peer, role);
  if (matched.empty()) return Status(Code::kUnavailable, "no port reaches one of the peer's");
  for (const ConnectedPair& one : matched) {
    pairs->push_back(std::move(pairs_[one.own]));
    targets->push_back(one.peer);
  }
  windows->KeepOnly(kRingKey, address_.queue_pairs[matched.front().own].port);
  pairs_.clear();
  return OkStatus();
}

void ChannelPorts::Close() {
  pairs_.clear();
  rings_.clear();
}

}  // namespace rdma_transport::fabric::verbs
