#include "protocol/mailbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rdma_transport {
namespace {

// Number of ended steps that a shard remembers. A notification is late by the contents of a ring,
// not by thousands of steps.
constexpr size_t kRememberedSteps = 1024;

}  // namespace

Mailbox::Taken Mailbox::TakeOrWait(int64_t step, const KeyId& key, PeerId source,
                                   const std::shared_ptr<PendingRecv>& recv, Arrival* arrival) {
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  if (shard.ended.count(step) != 0) return Taken::kEnded;
  Step& boxes = shard.steps[step];
  const auto [entry, created] = boxes.try_emplace(key);
  Box& box = entry->second;
  auto came = std::find_if(box.arrivals.begin(), box.arrivals.end(),
                           [](const Arrival& each) { return !each.pull; });
  const bool tensor = came != box.arrivals.end();
  if (!tensor) {
    box.recvs.push_back({recv, source});
    if (box.arrivals.empty()) return Taken::kWaiting;
    came = box.arrivals.begin();
  }
  *arrival = std::move(*came);
  box.arrivals.erase(came);
  if (!tensor) return Taken::kPulled;
  if (box.arrivals.empty() && box.recvs.empty()) boxes.erase(entry);
  if (boxes.empty()) shard.steps.erase(step);
  return Taken::kArrival;
}

std::shared_ptr<PendingRecv> Mailbox::Put(int64_t step, const KeyId& key, Arrival* arrival) {
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  const auto boxes = shard.steps.find(step);
  if (boxes != shard.steps.end()) {
    const auto entry = boxes->second.find(key);
    if (entry != boxes->second.end() && arrival->pull) {
      std::shared_ptr<PendingRecv> pulled;
      if (entry->second.Pull(&pulled)) return pulled;
    } else if (entry != boxes->second.end() && !entry->second.recvs.empty()) {
      std::shared_ptr<PendingRecv> recv = std::move(entry->second.recvs.front().recv);
      entry->second.recvs.pop_front();
      const bool empty = entry->second.recvs.empty() && entry->second.arrivals.empty();
      if (empty) boxes->second.erase(entry);
      if (boxes->second.empty()) shard.steps.erase(boxes);
      return recv;
    }
  }
  if (shard.ended.count(step) != 0) {
    GlobalCounters().late_tensors.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  shard.steps[step][key].arrivals.push_back(std::move(*arrival));
  return nullptr;
}

// Returns false if the notice is for a receive that comes later. Sets `recv` to the first one that
// does not use gRPC yet; if all of those that wait do, the notice is for them, and there is none.
bool Mailbox::Box::Pull(std::shared_ptr<PendingRecv>* recv) const {
  bool waits = false;
  for (const Waiting& waiting : recvs) {
    if (waiting.recv->claimed()) continue;
    waits = true;
    if (waiting.recv->uses_grpc()) continue;
    *recv = waiting.recv;
    break;
  }
  return waits;
}

void Mailbox::Remove(int64_t step, const KeyId& key, const PendingRecv* recv) {
  std::shared_ptr<PendingRecv> removed;  // dropped after unlocking
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  const auto boxes = shard.steps.find(step);
  if (boxes == shard.steps.end()) return;
  const auto entry = boxes->second.find(key);
  if (entry == boxes->second.end()) return;
  auto& recvs = entry->second.recvs;
  const auto found = std::find_if(recvs.begin(), recvs.end(),
                                  [&](const auto& kept) { return kept.recv.get() == recv; });
  if (found == recvs.end()) return;
  removed = std::move(found->recv);
  recvs.erase(found);
  if (recvs.empty() && entry->second.arrivals.empty()) boxes->second.erase(entry);
  if (boxes->second.empty()) shard.steps.erase(boxes);
}

template <typename Chosen>
std::list<std::shared_ptr<PendingRecv>> Mailbox::TakePendingIf(int64_t step, Chosen chosen) {
  std::list<std::shared_ptr<PendingRecv>> taken;
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  const auto boxes = shard.steps.find(step);
  if (boxes == shard.steps.end()) return taken;
  for (auto entry = boxes->second.begin(); entry != boxes->second.end();) {
    auto& recvs = entry->second.recvs;
    for (auto waiting = recvs.begin(); waiting != recvs.end();) {
      const auto each = waiting++;
      if (!chosen(*each)) continue;
      taken.push_back(std::move(each->recv));
      recvs.erase(each);
    }
    const bool empty = recvs.empty() && entry->second.arrivals.empty();
    entry = empty ? boxes->second.erase(entry) : std::next(entry);
  }
  if (boxes->second.empty()) shard.steps.erase(boxes);
  return taken;
}

std::list<std::shared_ptr<PendingRecv>> Mailbox::TakePending(int64_t step, PeerId source) {
  return TakePendingIf(step, [source](const Waiting& kept) { return kept.source == source; });
}

std::list<std::shared_ptr<PendingRecv>> Mailbox::TakeAllPending(int64_t step) {
  return TakePendingIf(step, [](const Waiting&) { return true; });
}

bool Mailbox::HasEnded(int64_t step) const {
  const Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  return shard.ended.count(step) != 0;
}

void Mailbox::EndStep(int64_t step) {
  Step leftovers;  // dropped after unlocking, because this sends releases
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  const auto boxes = shard.steps.find(step);
  if (boxes != shard.steps.end()) {
    leftovers = std::move(boxes->second);
    shard.steps.erase(boxes);
  }
  shard.RememberEnd(step);
}

void Mailbox::Shard::RememberEnd(int64_t step) {
  if (!ended.insert(step).second) return;
  ended_order.push_back(step);
  if (ended_order.size() > kRememberedSteps) {
    ended.erase(ended_order.front());
    ended_order.pop_front();
  }
}

void Mailbox::CloseStep(int64_t step, const std::function<bool()>& closes) {
  std::list<Arrival> dropped;  // after unlocking
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  if (!closes()) return;
  shard.RememberEnd(step);
  const auto boxes = shard.steps.find(step);
  if (boxes == shard.steps.end()) return;
  for (auto entry = boxes->second.begin(); entry != boxes->second.end();) {
    dropped.splice(dropped.end(), entry->second.arrivals);
    entry = entry->second.recvs.empty() ? boxes->second.erase(entry) : std::next(entry);
  }
  if (boxes->second.empty()) shard.steps.erase(boxes);
}

void Mailbox::ReopenStep(int64_t step) {
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  if (shard.ended.erase(step) == 0) return;
  auto& order = shard.ended_order;
  order.erase(std::find(order.begin(), order.end(), step));
}

void Mailbox::Discard(int64_t step, const std::function<bool(const Arrival&)>& unwanted) {
  std::list<Arrival> discarded;  // dropped after unlocking
  Shard& shard = ShardOf(step);
  std::lock_guard<std::mutex> lock(shard.mu);
  const auto boxes = shard.steps.find(step);
  if (boxes == shard.steps.end()) return;
  for (auto entry = boxes->second.begin(); entry != boxes->second.end();) {
    auto& arrivals = entry->second.arrivals;
    for (auto arrival = arrivals.begin(); arrival != arrivals.end();) {
      const auto each = arrival++;
      if (unwanted(*each)) discarded.splice(discarded.end(), arrivals, each);
    }
    const bool empty = arrivals.empty() && entry->second.recvs.empty();
    entry = empty ? boxes->second.erase(entry) : std::next(entry);
  }
  if (boxes->second.empty()) shard.steps.erase(boxes);
}

size_t Mailbox::kept() const {
  size_t count = 0;
  for (const Shard& shard : shards_) {
    std::lock_guard<std::mutex> lock(shard.mu);
    for (const auto& [step, boxes] : shard.steps) {
      for (const auto& [key, box] : boxes) count += box.arrivals.size();
    }
  }
  return count;
}

}  // namespace rdma_transport
