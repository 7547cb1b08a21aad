// How a channel shares regions with its peer, and takes them back.
#include <utility>
#include <vector>

#include "fabric/verbs/channel.h"

namespace rdma_transport::fabric::verbs {

Status VerbsChannel::Share(uint64_t key) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (shared_.count(key) != 0) return OkStatus();
  }
  RegionRecord record = {};
  Registrations memory;
  // Call without the lock, because it may pin pages.
  RDMA_RETURN_IF_ERROR(device_->memory().Describe(key, &record, &memory));
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  if (shared_.count(key) != 0) return OkStatus();
  const Registrations of_pairs = ByPair(memory);
  if (of_pairs[main_] == nullptr) {
    return Status(Code::kResourceExhausted,
                  "memory is not registered with " + main().adapter()->Name());
  }
  RDMA_RETURN_IF_ERROR(windows_.Make(key, of_pairs));
  for (size_t i = 0; i < pairs_.size(); ++i) BindWindow(key, i);
  const Status added = SendRegion(record, of_pairs);
  if (added.ok()) {
    shared_[key] = {record, std::move(memory)};
  } else {
    windows_.Revoke(key);
  }
  return added;
}

// Pushed before all later work on the queue pair, and before all batches.
void VerbsChannel::BindWindow(uint64_t key, size_t i) {
  Work work;
  work.kind = Work::Kind::kBind;
  work.signaled = true;
  work.window = windows_.Of(key, i);
  if (work.window == nullptr) return;
  windows_.OnBinding(work.window);
  transfers_.BeginBind(i);
  pairs_[i]->Push(work);
}

// `memory` is by queue pair.
Status VerbsChannel::SendRegion(RegionRecord record, const Registrations& memory) {
  std::vector<RegionEnd> ends(memory.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i] == nullptr) continue;
    const Window* window = windows_.Of(record.key, i);
    ends[i] = {memory[i]->iova(), window == nullptr ? memory[i]->rkey() : window->rkey(),
               memory[i]->far() ? kUsableFar : kUsable};
  }
  record.ends = static_cast<uint32_t>(ends.size());
  const iovec parts[] = {{&record, sizeof(record)}, {ends.data(), ends.size() * sizeof(ends[0])}};
  return AddRecord(RecordKind::kRegion, parts, 2, 0, /*signaled=*/false);
}

void VerbsChannel::ForgetRegion(uint64_t key) {
  std::lock_guard<std::mutex> lock(mu_);
  windows_.Revoke(key);
  if (shared_.erase(key) == 0 || state_.load() != State::kConnected) return;
  const iovec part = {&key, sizeof(key)};
  // If the notification is lost, the peer uses a key that the card refuses.
  AddRecord(RecordKind::kForget, &part, 1, 0, /*signaled=*/false).IgnoreError();
}

bool VerbsChannel::Locate(const void* data, RemoteSpan* span) const {
  return device_->adapter().Usable() && device_->memory().Locate(data, span);
}

}  // namespace rdma_transport::fabric::verbs
