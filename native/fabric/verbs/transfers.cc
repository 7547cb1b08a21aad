#include "fabric/verbs/transfers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "fabric/verbs/lane.h"

namespace rdma_transport::fabric::verbs {
namespace {

// A transfer is spread over as many queue pairs as get at least this much. A piece in a lane may be
// shorter, because the port is slow or shared by many lanes.
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
  const auto usable = [](const RegionEnd& end) { return end.usable != 0; };
  if (std::none_of(region.ends.begin(), region.ends.end(), usable)) return malformed;
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

// Chooses the queue pairs for shares of a transfer, the main one first, and returns their number:
// of those whose ports are nearest to the memory of both ends, all.
size_t Transfers::Choose(const PeerRegion& region, const LocalEnds& ends, const QueuePairs& pairs,
                         size_t main, std::array<size_t, kMaxQueuePairs>* used) {
  size_t count = 0;
  int nearest = 3;  // farther than any
  const auto consider = [&](size_t i) {
    const LocalEnd& local = ends[pairs[i]->port()];
    const int distance = (local.far ? 1 : 0) + (region.ends[i].usable == kUsableFar ? 1 : 0);
    if (!local.usable || region.ends[i].usable == 0 || distance > nearest) return;
    if (distance < nearest) count = 0;
    nearest = distance;
    (*used)[count++] = i;
  };
  consider(main);
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (i != main && pairs[i]->takes_shares()) consider(i);
  }
  return count;
}

void Transfers::Begin(const Work& work, Part part, const RemoteSpan& span, const PeerRegion& region,
                      const LocalEnds& ends, uint64_t chunk, const QueuePairs& pairs, size_t main) {
  const uint64_t least = std::min(part == Part::kWhole ? kMinShare : Lane::kMinPiece, chunk);
  std::array<size_t, kMaxQueuePairs> used = {main};
  size_t count = 1;
  if (part != Part::kWhole || span.length >= 2 * least) {
    count = Choose(region, ends, pairs, main, &used);
  }
  count = std::max<size_t>(std::min<uint64_t>(count, span.length / least), 1);
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

Status Transfers::Retarget(Work* work, RegisteredMemory* memory, size_t index, size_t port) {
  const RemoteSpan span = {work->region, work->offset, work->length};
  const PeerRegion* region = nullptr;
  RDMA_RETURN_IF_ERROR(Aim(span, work->kind, &region));
  LocalEnds ends;
  RDMA_RETURN_IF_ERROR(memory->FindLocal(work->local, work->length, &ends));
  if (!ends[port].usable || region->ends[index].usable == 0) {
    return Status(Code::kUnavailable, "memory is not registered with a port that works");
  }
  work->local_end = ends[port];
  work->remote = region->ends[index].address + work->offset;
  work->rkey = region->ends[index].rkey;
  if (work->kind == Work::Kind::kWrite && work->last) ++begun_[index];
  return OkStatus();
}

void Transfers::OnEnded(size_t index, const Work& work) {
  if (work.kind == Work::Kind::kWrite) ++ended_[index];
  const auto found = divided_.find(work.cookie);
  if (found != divided_.end()) {
    if (--found->second.unfinished > 0 || found->second.more) return;
    divided_.erase(found);
  }
  reported_.push_back({work.cookie, OkStatus()});
}

std::vector<Transfers::Ended> Transfers::TakeEnded() { return std::exchange(reported_, {}); }

}  // namespace rdma_transport::fabric::verbs
