#include "fabric/verbs/transfers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

// A transfer is spread over as many queue pairs as get at least this much.
constexpr uint64_t kMinShare = uint64_t{256} << 10;
constexpr uint64_t kShareGranule = 4096;

}  // namespace

Status Transfers::Learn(std::string_view bytes, size_t queue_pairs) {
  const Status malformed(Code::kDataLoss, "a malformed description of a region");
  RegionRecord record;
  if (bytes.size() < sizeof(record)) return malformed;
  std::memcpy(&record, bytes.data(), sizeof(record));
  bytes.remove_prefix(sizeof(record));
  if ((record.ends != 1 && record.ends != queue_pairs) || record.ends > kMaxQueuePairs ||
      bytes.size() != record.ends * sizeof(RegionEnd)) {
    return malformed;
  }
  PeerRegion region = {record.length, record.writable != 0, {}};
  std::memcpy(region.ends.data(), bytes.data(), bytes.size());
  if (record.ends == 1) region.ends.fill(region.ends.front());
  // Whatever is not spread goes by the first queue pair.
  if (region.ends.front().usable == 0) return malformed;
  if (regions_.size() >= kMaxRegions && regions_.count(record.key) == 0) {
    return Status(Code::kResourceExhausted, "the peer announces more than " +
                                                std::to_string(kMaxRegions) + " memory regions");
  }
  regions_[record.key] = region;
  return OkStatus();
}

Status Transfers::Aim(const RemoteSpan& span, Work::Kind kind, const PeerRegion** region) const {
  const auto found = regions_.find(span.key);
  if (found == regions_.end() || span.offset > found->second.length ||
      span.length > found->second.length - span.offset) {
    return Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
  }
  if (kind == Work::Kind::kWrite && !found->second.writable) {
    return Status(Code::kPermissionDenied, "a write to memory that the peer only lets be read");
  }
  *region = &found->second;
  return OkStatus();
}

void Transfers::Begin(const Work& work, Part part, const RemoteSpan& span, const PeerRegion& region,
                      const LocalEnds& ends, uint64_t chunk, const QueuePairs& pairs) {
  std::array<size_t, kMaxQueuePairs> used = {0};
  size_t count = 1;
  const uint64_t most = span.length / std::min(kMinShare, chunk);
  for (size_t i = 1; i < pairs.size() && count < most; ++i) {
    if (!pairs[i]->takes_shares() || region.ends[i].usable == 0) continue;
    if (ends[pairs[i]->port()].usable) used[count++] = i;
  }
  if (count > 1 || part != Part::kWhole) {
    Divided& divided = divided_[work.cookie];
    divided.unfinished += static_cast<int>(count);
    divided.more = part == Part::kPiece;
  }
  const uint64_t share = (span.length / count + kShareGranule - 1) / kShareGranule * kShareGranule;
  for (size_t turn = 0; turn < count; ++turn) {
    const size_t i = used[turn];
    const uint64_t from = turn * share;
    const uint64_t length = turn + 1 == count ? span.length - from : share;
    Work whole = work;
    whole.local_end = ends[pairs[i]->port()];
    whole.remote = region.ends[i].address + span.offset;
    whole.rkey = region.ends[i].rkey;
    whole.region = span.key;
    whole.offset = span.offset;
    // The end of a share lets the next piece begin.
    whole.share = part == Part::kWhole ? 0 : length;
    whole.signaled = part != Part::kWhole;
    Push(i, whole, from, length, chunk, pairs[i].get());
  }
}

void Transfers::Push(size_t index, const Work& whole, uint64_t from, uint64_t length,
                     uint64_t chunk, QueuePair* pair) {
  if (whole.kind == Work::Kind::kWrite) ++begun_[index];
  uint64_t done = 0;
  do {
    Work work = whole;
    work.local = whole.local + from + done;
    work.remote = whole.remote + from + done;
    work.offset = whole.offset + from + done;
    work.length = static_cast<uint32_t>(std::min(chunk, length - done));
    done += work.length;
    work.last = done == length;
    work.signaled = whole.signaled && work.last;
    pair->Push(work);
  } while (done < length);
}

void Transfers::ForgetPair(size_t index) {
  for (auto& [key, region] : regions_) region.ends[index].usable = 0;
}

Status Transfers::Repeat(size_t index, const std::vector<Work>& unfinished,
                         RegisteredMemory* memory, QueuePair* first) {
  for (auto work = unfinished.rbegin(); work != unfinished.rend(); ++work) {
    const bool data = work->kind == Work::Kind::kWrite || work->kind == Work::Kind::kRead;
    if (!data || (work->length == 0 && !work->last)) continue;  // a binding, or a question
    const RemoteSpan span = {work->region, work->offset, work->length};
    const PeerRegion* region = nullptr;
    RDMA_RETURN_IF_ERROR(Aim(span, work->kind, &region));
    LocalEnds ends;
    RDMA_RETURN_IF_ERROR(memory->FindLocal(work->local, work->length, &ends));
    Work again = *work;
    again.local_end = ends[first->port()];
    again.remote = region->ends.front().address + work->offset;
    again.rkey = region->ends.front().rkey;
    first->PushFirst(again);
  }
  ended_[index] = begun_[index];
  return OkStatus();
}

void Transfers::OnEnded(size_t index, const Work& work) {
  if (work.kind == Work::Kind::kWrite) ++ended_[index];
  const auto found = divided_.find(work.cookie);
  if (found != divided_.end()) {
    if (--found->second.unfinished > 0 || found->second.more) return;
    divided_.erase(found);
  }
  told_.push_back({work.cookie, OkStatus()});
}

std::vector<Transfers::Ended> Transfers::TakeEnded() { return std::exchange(told_, {}); }

}  // namespace rdma_transport::fabric::verbs
