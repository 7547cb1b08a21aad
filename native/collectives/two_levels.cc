// Two levels, for hosts with several members each. A member combines its share of a chunk out of
// the memory of the members of its host. The members with that share, one on each host, then
// combine a piece of it each, and exchange the pieces. So each byte of a share leaves and enters a
// host once in either direction, and not once for each member.
//
// Each turn of a call works on several chunks, and has two halves. Chunk n is
//
//   in turn n      staged for this host
//      n + 1       combined on each host; the other hosts are sent their pieces of it
//      n + 2       combined across the hosts, and they are sent the result      (second half)
//      n + 3       complete: the share has been collected from its pieces       (second half)
//      n + 4       copied to the output from the shares of this host's members  (second half)
//
// A half waits only for the same half of the turn before, so that the bytes of one half travel
// during the other one.

#include <cstring>
#include <optional>

#include "collectives/chunk.h"
#include "collectives/group.h"
#include "collectives/reduce.h"

namespace rdma_transport::collectives {
namespace {

// A chunk is staged in the place of the last but one, which has been combined by then.
constexpr size_t kInputs = 2;
// Six places in the other stages. When a place is used again, its last chunk has been copied by all
// in the last turn but one.
constexpr size_t kShares = 6;
constexpr size_t kPerStage = kStageBytes / kChunkBytes;
static_assert(kPerStage == kInputs && kShares == 3 * kPerStage);

size_t InputPlace(size_t number, int parity) {
  return static_cast<size_t>(parity) * kStageBytes + number % kInputs * kChunkBytes;
}

size_t SharePlace(size_t number, int parity) {
  const size_t place = number % kShares;
  const size_t stage = place < kPerStage ? 1 - static_cast<size_t>(parity) : 1 + place / kPerStage;
  return stage * kStageBytes + place % kPerStage * kChunkBytes;
}

}  // namespace

Round Group::LocalShare(const Round& chunk, size_t place) const {
  return Divide({0, 0, chunk.length}, hosts_->local.size(), place);
}

Status Group::StageOnHost(const Call& call, const Round& chunk, int parity,
                          const Patience& patience) {
  char* const to = own_stage(0) + InputPlace(chunk.number, parity);
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(to, chunk.length, patience));
  const char* const from = call.input + chunk.begin;
  const Round own = LocalShare(chunk, hosts_->place);
  const size_t end = own.begin + own.length;
  std::memcpy(to, from, own.begin);
  std::memcpy(to + end, from + end, chunk.length - end);
  return OkStatus();
}

Status Group::ReduceOnHost(const Call& call, const Round& chunk, int parity,
                           const Patience& patience) {
  const Round share = LocalShare(chunk, hosts_->place);
  char* const result = own_stage(0) + SharePlace(chunk.number, parity);
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(result + share.begin, share.length, patience));
  level_sources_.clear();
  for (const int rank : hosts_->local) {
    const char* const input = rank == this->rank()
                                  ? call.input + chunk.begin
                                  : stage(rank, 0) + InputPlace(chunk.number, parity);
    level_sources_.push_back(input + share.begin);
  }
  Reduce(call.dtype, call.op, level_sources_, share.length / SizeOf(call.dtype),
         result + share.begin, nullptr);
  for (size_t host = 0; host < hosts_->across.size(); ++host) {
    if (host == hosts_->host) continue;
    const Round piece = Divide(share, hosts_->across.size(), host);
    Offer(hosts_->across[host], result + piece.begin, piece.length);
  }
  return OkStatus();
}

void Group::ReduceAcross(const Call& call, const Round& chunk, int parity) {
  const size_t place = SharePlace(chunk.number, parity);
  const Round share = LocalShare(chunk, hosts_->place);
  const Round piece = Divide(share, hosts_->across.size(), hosts_->host);
  level_sources_.clear();
  for (const int rank : hosts_->across) {
    level_sources_.push_back(stage(rank, 0) + place + piece.begin);
  }
  char* const result = own_stage(0) + place + piece.begin;
  Reduce(call.dtype, call.op, level_sources_, piece.length / SizeOf(call.dtype), result, nullptr);
  for (const int rank : hosts_->across) {
    if (rank != this->rank()) Offer(rank, result, piece.length);
  }
}

Status Group::CollectShare(const Round& chunk, int parity, const Patience& patience) {
  const size_t place = SharePlace(chunk.number, parity);
  const Round share = LocalShare(chunk, hosts_->place);
  char* const result = own_stage(0) + place;
  // The other hosts have what they were sent of it, but the card may not have said so.
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(result + share.begin, share.length, patience));
  for (size_t host = 0; host < hosts_->across.size(); ++host) {
    if (host == hosts_->host) continue;
    const Round piece = Divide(share, hosts_->across.size(), host);
    std::memcpy(result + piece.begin, stage(hosts_->across[host], 0) + place + piece.begin,
                piece.length);
  }
  return OkStatus();
}

void Group::CopyFromHost(const Call& call, const Round& chunk, int parity) const {
  const size_t members = hosts_->local.size();
  for (size_t i = 0; i < members; ++i) {
    const size_t place = (hosts_->place + i) % members;
    const Round share = LocalShare(chunk, place);
    std::memcpy(call.output + chunk.begin + share.begin,
                stage(hosts_->local[place], 0) + SharePlace(chunk.number, parity) + share.begin,
                share.length);
  }
}

// The first chunk has been staged and announced by all.
Status Group::RunTwoLevels(const Call& call, int parity, const Patience& patience) {
  const size_t chunks = ChunksOf(call.count * SizeOf(call.dtype));
  // The steps that end the halves of the last turn. All members have the same ones.
  uint32_t first = progress_.step();
  uint32_t second = first;
  const auto wait_for = [&](uint32_t step) {
    return progress_.WaitForAll(patience, progress_.step() - step);
  };
  for (size_t turn = 1; turn < chunks + 4; ++turn) {
    const auto chunk_after = [&](size_t turns) -> std::optional<Round> {
      if (turn < turns || turn - turns >= chunks) return std::nullopt;
      return Chunk(call, turn - turns);
    };
    if (const auto chunk = chunk_after(1)) {
      RDMA_RETURN_IF_ERROR(wait_for(first));
      const auto next = chunk_after(0);
      if (next) RDMA_RETURN_IF_ERROR(StageOnHost(call, *next, parity, patience));
      RDMA_RETURN_IF_ERROR(ReduceOnHost(call, *chunk, parity, patience));
      RDMA_RETURN_IF_ERROR(Announce(patience));
      first = progress_.step();
    }
    if (turn > 1) {
      RDMA_RETURN_IF_ERROR(wait_for(second));
      if (const auto chunk = chunk_after(2)) ReduceAcross(call, *chunk, parity);
      if (const auto chunk = chunk_after(3)) {
        RDMA_RETURN_IF_ERROR(CollectShare(*chunk, parity, patience));
      }
      if (const auto chunk = chunk_after(4)) CopyFromHost(call, *chunk, parity);
      RDMA_RETURN_IF_ERROR(Announce(patience));
    }
    second = progress_.step();
  }
  // The next call may use any place.
  return progress_.WaitForAll(patience);
}

}  // namespace rdma_transport::collectives
