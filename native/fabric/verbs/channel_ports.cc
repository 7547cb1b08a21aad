#include "fabric/verbs/channel_ports.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fabric/verbs/rails.h"

namespace rdma_transport::fabric::verbs {

Status ChannelPorts::Open(const std::vector<Adapter*>& adapters, const Region& ring,
                          const Queues& queues, Windows* windows) {
  Status first;
  address_.rails = static_cast<uint32_t>(adapters.front()->settings().ports);
  const auto wanted = static_cast<size_t>(adapters.front()->settings().queue_pairs);
  const auto known = static_cast<size_t>(std::count_if(
      adapters.begin(), adapters.end(), [](const Adapter* a) { return a->port().known; }));
  const size_t count =
      std::min(wanted, std::max(kMaxQueuePairs / std::max(known, size_t{1}), size_t{1}));
  for (Adapter* adapter : adapters) {
    Queues next = queues;
    next.tag += static_cast<uint32_t>(pairs_.size());
    Prepared prepared;
    const size_t room = kMaxQueuePairs - pairs_.size();
    if (room == 0) break;
    const Status status = Prepare(adapter, ring, std::min(count, room), next, &prepared);
    if (!status.ok()) {
      if (first.ok()) first = status;
      Log(LogLevel::kDebug, "a channel without " + adapter->Name() + ": " + status.message());
      continue;
    }
    Describe(*adapter, prepared);
    rings_.push_back(std::move(prepared.ring));
    for (auto& pair : prepared.pairs) pairs_.push_back(std::move(pair));
  }
  const auto none = [](const std::shared_ptr<Registration>& one) { return one == nullptr; };
  if (std::all_of(rings_.begin(), rings_.end(), none)) return first;
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
  const bool known = adapter->port().known;
  if (known) {
    RDMA_RETURN_IF_ERROR(adapter->Expose(ring.address(), ring.length(),
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                                         &prepared->ring));
  }
  for (size_t i = 0; i < count; ++i) {
    const uint32_t tag = queues.tag + static_cast<uint32_t>(i);
    const int receives = i == 0 ? queues.receives : 0;
    prepared->pairs.push_back(std::make_unique<QueuePair>(adapter, tag));
    if (known) {
      RDMA_RETURN_IF_ERROR(prepared->pairs.back()->Create(queues.depth, receives));
    } else {
      prepared->pairs.back()->Reserve(receives);
    }
  }
  return OkStatus();
}

void ChannelPorts::Describe(const Adapter& adapter, const Prepared& prepared) {
  ChannelAddress::Port port = AddressOf(adapter.port());
  if (prepared.ring != nullptr) {
    port.active = adapter.active();
    port.ring_address = prepared.ring->iova();
    port.ring_rkey = prepared.ring->rkey();
  } else {
    port = {};
    port.ethernet = adapter.port().ethernet;
    port.known = false;
  }
  const auto index = static_cast<uint32_t>(address_.ports.size());
  address_.ports.push_back(port);
  for (const auto& pair : prepared.pairs) {
    address_.queue_pairs.push_back({pair->number(), pair->first_psn(), index});
  }
}

Status ChannelPorts::Match(const ChannelAddress& peer, Role role, Windows* windows,
                           Matched* matched) {
  std::vector<size_t> ring_windows;
  for (const ConnectedPair& one : MatchQueuePairs(address_, peer, role)) {
    const size_t place = address_.queue_pairs[one.own].port;
    std::shared_ptr<QueuePair>& pair = pairs_[one.own];
    ring_windows.push_back(pair->receives() ? place : rings_.size());
    matched->rings.resize(std::max(matched->rings.size(), pair->port() + 1));
    matched->rings[pair->port()] = rings_[place];
    matched->pairs.push_back(std::move(pair));
    matched->targets.push_back(one.peer);
  }
  if (matched->pairs.empty())
    return Status(Code::kUnavailable, "no port reaches one of the peer's");
  windows->Rearrange(kRingKey, ring_windows);
  Close();
  return OkStatus();
}

void ChannelPorts::Close() {
  pairs_.clear();
  rings_.clear();
}

}  // namespace rdma_transport::fabric::verbs
