// How the rings of notifications grow, and through which queue pairs they are reached.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fabric/verbs/channel.h"

namespace rdma_transport::fabric::verbs {

// The peer lacks room. Refusing it is no reason to end the channel.
Status VerbsChannel::OnRingRequest(uint64_t size) {
  if (!greeted_) return Status(Code::kDataLoss, "a request for a larger ring at a wrong time");
  std::vector<Adapter*> adapters;
  size_t port = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    port = main().port();
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (!ReachesRings(i)) continue;
      adapters.resize(std::max(adapters.size(), pairs_[i]->port() + 1));
      adapters[pairs_[i]->port()] = pairs_[i]->adapter();
    }
  }
  // Call without the lock, because it pins pages.
  Status grown = inbox_.Grow(adapters, port, size);
  if (grown.code() == Code::kDataLoss) return grown;
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return OkStatus();
  RingRecord record = {};
  Outbox::Ends ends = {};
  if (grown.ok()) {
    const Inbox::Ring& next = inbox_.next();
    record.size = next.size();
    record.ends = static_cast<uint32_t>(pairs_.size());
    for (size_t i = 0; i < pairs_.size() && grown.ok(); ++i) {
      if (!ReachesRings(i)) continue;
      const Status opened = OpenRing(/*next=*/true, i, &ends[i]);
      if (i == main_) grown = opened;
    }
  }
  if (!grown.ok()) {
    windows_.Revoke(inbox_.next().key);
    inbox_.DropNext();
    record = {};
    Log(LogLevel::kWarning, route_ + ": the ring of notifications cannot grow to " +
                                std::to_string(size) + " bytes: " + grown.message());
  }
  std::string bytes(reinterpret_cast<const char*>(&record), sizeof(record));
  bytes.append(reinterpret_cast<const char*>(ends.data()), record.ends * sizeof(ends[0]));
  outbox_.AddRing(std::move(bytes));
  Attend();
  return OkStatus();
}

// Lets the peer write to a ring through queue pair `i`.
Status VerbsChannel::OpenRing(bool next, size_t i, RegionEnd* end) {
  const Inbox::Ring& ring = next ? inbox_.next() : inbox_.ring();
  const size_t port = pairs_[i]->port();
  RDMA_RETURN_IF_ERROR(inbox_.Register(pairs_[i]->adapter(), next));
  const Registration& memory = *ring.registrations[port];
  RDMA_RETURN_IF_ERROR(windows_.MakeOne(ring.key, i, pairs_.size(), ring.registrations[port]));
  BindWindow(ring.key, i);
  const Window* window = windows_.Of(ring.key, i);
  *end = {memory.iova(), window == nullptr ? memory.rkey() : window->rkey(), 1};
  return OkStatus();
}

Status VerbsChannel::OnRing(std::string_view bytes) {
  RingRecord record;
  Outbox::Ends ends = {};
  const Status malformed(Code::kDataLoss, "a ring described in a wrong size");
  if (bytes.size() < sizeof(record)) return malformed;
  std::memcpy(&record, bytes.data(), sizeof(record));
  bytes.remove_prefix(sizeof(record));
  if (record.ends > ends.size() || bytes.size() != record.ends * sizeof(ends[0])) return malformed;
  std::memcpy(ends.data(), bytes.data(), bytes.size());
  std::lock_guard<std::mutex> lock(mu_);
  const Status status = outbox_.OnRing(record.size, ends);
  if (status.code() != Code::kResourceExhausted) return status;
  PartLocked(status);  // what the peer sends until it hears of this is still handled
  return OkStatus();
}

Status VerbsChannel::OnRingEnd(std::string_view bytes) {
  RingEndRecord record;
  if (bytes.size() == sizeof(record)) std::memcpy(&record, bytes.data(), sizeof(record));
  std::lock_guard<std::mutex> lock(mu_);
  if (bytes.size() != sizeof(record) || record.index >= pairs_.size()) {
    return Status(Code::kDataLoss, "a ring at a queue pair that does not exist");
  }
  outbox_.OnRingEnd(record.size, record.index, record.end);
  return OkStatus();
}

// Returns whether the peer may write to the rings through queue pair `i`, or will be able to.
bool VerbsChannel::ReachesRings(size_t i) const {
  const PairState& state = states_[i];
  if (!pairs_[i]->receives()) return false;
  return i == main_ || state.phase == PairState::Phase::kUp ||
         (state.phase == PairState::Phase::kUntested && !state.made_anew);
}

void VerbsChannel::AnnounceRings(size_t i) {
  if (!pairs_[i]->receives()) return;
  for (const bool next : {false, true}) {
    const Inbox::Ring& ring = next ? inbox_.next() : inbox_.ring();
    if (ring.memory == nullptr) continue;
    RingEndRecord record = {};
    record.size = ring.size();
    record.index = static_cast<uint32_t>(i);
    // Without it, this queue pair never becomes the main one.
    if (!OpenRing(next, i, &record.end).ok()) continue;
    const iovec part = {&record, sizeof(record)};
    AddRecord(RecordKind::kRingEnd, &part, 1, 0, /*signaled=*/false).IgnoreError();
  }
}

}  // namespace rdma_transport::fabric::verbs
