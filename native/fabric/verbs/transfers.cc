#include "fabric/verbs/transfers.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

// A transfer is spread over the queue pairs if each gets at least this much.
constexpr uint64_t kMinShare = uint64_t{256} << 10;
constexpr uint64_t kShareGranule = 4096;

}  // namespace

Status Transfers::Learn(const RegionRecord& region, const RemoteKeys& keys) {
  if (regions_.size() >= kMaxRegions && regions_.count(region.key) == 0) {
    return Status(Code::kResourceExhausted, "the peer announces more than " +
                                                std::to_string(kMaxRegions) + " memory regions");
  }
  regions_[region.key] = {region.address, region.length, keys, region.writable != 0};
  return OkStatus();
}

Status Transfers::Aim(const RemoteSpan& span, Work* work, RemoteKeys* keys) const {
  const auto found = regions_.find(span.key);
  if (found == regions_.end() || span.offset > found->second.length ||
      span.length > found->second.length - span.offset) {
    return Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
  }
  if (work->kind == Work::Kind::kWrite && !found->second.writable) {
    return Status(Code::kPermissionDenied, "a write to memory that the peer only lets be read");
  }
  work->remote = found->second.address + span.offset;
  *keys = found->second.keys;
  return OkStatus();
}

void Transfers::Begin(const Work& work, const RemoteKeys& keys, uint64_t length, uint64_t chunk,
                      const QueuePairs& pairs) {
  const uint64_t count = pairs.size();
  if (count == 1 || length < count * kMinShare) {
    return Push(0, work, keys, 0, length, chunk, pairs);
  }
  shares_[work.cookie] = static_cast<int>(count);
  const uint64_t share = (length / count + kShareGranule - 1) / kShareGranule * kShareGranule;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t from = i * share;
    Push(i, work, keys, from, i + 1 == count ? length - from : share, chunk, pairs);
  }
}

void Transfers::Push(size_t index, const Work& whole, const RemoteKeys& keys, uint64_t from,
                     uint64_t length, uint64_t chunk, const QueuePairs& pairs) {
  if (whole.kind == Work::Kind::kWrite) ++begun_[index];
  uint64_t done = 0;
  do {
    Work work = whole;
    work.local = whole.local + from + done;
    work.remote = whole.remote + from + done;
    work.rkey = keys[index];
    work.length = static_cast<uint32_t>(std::min(chunk, length - done));
    done += work.length;
    work.last = done == length;
    pairs[index]->Push(work);
  } while (done < length);
}

void Transfers::OnEnded(size_t index, const Work& work) {
  if (work.kind == Work::Kind::kWrite) ++ended_[index];
  const auto spread = shares_.find(work.cookie);
  if (spread != shares_.end()) {
    if (--spread->second > 0) return;
    shares_.erase(spread);
  }
  told_.push_back({work.cookie, OkStatus()});
}

std::vector<Transfers::Ended> Transfers::TakeEnded() { return std::exchange(told_, {}); }

}  // namespace rdma_transport::fabric::verbs
