// Two levels, for hosts with several members. Members of different hosts with the same place
// on their host form the second level, and only they send each other anything. So each byte leaves
// and enters a host once in either direction, and not once for each member.
//
//   all-reduce      a member combines its share of a chunk out of the memory of its host's members.
//                   Across the hosts each combines a piece of the share, and they exchange the
//                   pieces
//   reduce-scatter  the same, where the pieces are what the members on the second level want. This
//                   and an all-gather need equally many members on each host
//   all-gather      the members on the second level send each other their parts, and the members of
//                   their host read these there
//   reduce          the same as an all-reduce, but only the root's host collects the pieces, and
//                   only the root copies them
//   broadcast       each member of the root's host reads its share of a chunk there, and sends it
//                   to the other hosts, whose members read it there
//
// Each turn of a call works on several chunks, and has two halves. Chunk n of an all-reduce is
//
//   in turn n      staged for this host
//      n + 1       combined on each host, and the other hosts are sent their pieces of it
//      n + 2       combined across the hosts, and they are sent the result      (second half)
//      n + 3       complete: the share has been collected from its pieces       (second half)
//      n + 4       copied to the output from the shares of this host's members  (second half)
//
// The others leave out some of that, and end sooner.
//
// Where hosts have different numbers of members, as many of each host as the smallest one has form
// the second level. The others only contribute and read.
//
// A half waits only for the same half of the turn before, so that the bytes of one half travel
// during the other one.

#include <cstring>
#include <vector>

#include "collectives/group.h"
#include "collectives/reduce.h"
#include "collectives/round.h"

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

// Whether each member has a part of the larger array.
bool HasParts(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllGather;
}

}  // namespace

Group::Levels Group::LevelsOf(Collective collective) {
  switch (collective) {
    case Collective::kReduceScatter:
      return {&Group::StageParts, &Group::ReduceOnHost, {&Group::ReduceAcross}};
    case Collective::kAllGather:
      return {nullptr, &Group::SendPart, {&Group::CollectShare, &Group::CopyToOutput}};
    case Collective::kBroadcast:
      return {&Group::StageArray, &Group::SendShare, {&Group::CollectShare, &Group::CopyToOutput}};
    default:
      return {&Group::StageArray,
              &Group::ReduceOnHost,
              {&Group::ReduceAcross, &Group::CollectShare, &Group::CopyToOutput}};
  }
}

// Chunks are parts of the arrays, or of each member's part of the larger array.
size_t Group::LevelChunks(const Call& call) const {
  const size_t bytes = call.count * SizeOf(call.dtype);
  if (!HasParts(call.collective)) return ChunksOf(bytes);
  const size_t size = LevelChunk(call, 0).length;
  return (bytes + size - 1) / size;
}

Round Group::LevelChunk(const Call& call, size_t number) const {
  if (!HasParts(call.collective)) return Chunk(call, number);
  const bool gathers = call.collective == Collective::kAllGather;
  const size_t parts = gathers ? hosts_->count() : memory_.size();
  return PartOf(call.count * SizeOf(call.dtype), kChunkBytes / parts / kLine * kLine, number);
}

// Returns where a piece of a chunk lies in the chunk's place: that of a host, out of the share of
// the members with this place on their host. All of a broadcast is of the root's host.
Round Group::LevelPiece(const Call& call, const Round& chunk, size_t place, size_t host) const {
  if (!HasParts(call.collective)) {
    const Round share = Divide({0, 0, chunk.length}, hosts_->lanes(), place);
    if (call.collective != Collective::kBroadcast) return Divide(share, hosts_->count(), host);
    return host == hosts_->Of(call.root) ? share : Round{0, share.begin, 0};
  }
  const bool gathers = call.collective == Collective::kAllGather;
  const size_t piece = gathers ? host : place * hosts_->count() + host;
  return {0, piece * RoundUp(chunk.length), chunk.length};
}

// The members of the other hosts with this one's place are to read these bytes in the next step.
void Group::OfferAcross(const char* begin, size_t length) {
  for (size_t host = 0; host < hosts_->count(); ++host) {
    if (host != hosts_->host) Offer(hosts_->Across(host), begin, length);
  }
}

Status Group::StageArray(const Call& call, const Round& chunk, int parity,
                         const Patience& patience) {
  const bool broadcast = call.collective == Collective::kBroadcast;
  if (broadcast && rank() != call.root) return OkStatus();
  char* const to = own_stage(0) + InputPlace(chunk.number, parity);
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(to, chunk.length, patience));
  const char* const from = (broadcast ? call.output : call.input) + chunk.begin;
  const Round own = Divide({0, 0, chunk.length}, hosts_->lanes(), hosts_->place);
  const size_t end = own.begin + own.length;
  std::memcpy(to, from, own.begin);
  std::memcpy(to + end, from + end, chunk.length - end);
  return OkStatus();
}

Status Group::StageParts(const Call& call, const Round& chunk, int parity,
                         const Patience& patience) {
  char* const to = own_stage(0) + InputPlace(chunk.number, parity);
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(to, kChunkBytes, patience));
  const size_t bytes = call.count * SizeOf(call.dtype);
  for (size_t place = 0; place < hosts_->local().size(); ++place) {
    for (size_t host = 0; host < hosts_->count(); ++host) {
      const auto rank = static_cast<size_t>(hosts_->ranks[host][place]);
      std::memcpy(to + LevelPiece(call, chunk, place, host).begin,
                  call.input + rank * bytes + chunk.begin, chunk.length);
    }
  }
  return OkStatus();
}

Status Group::ReduceOnHost(const Call& call, const Round& chunk, int parity,
                           const Patience& patience) {
  if (!hosts_->has_lane()) return OkStatus();
  char* const result = own_stage(0) + SharePlace(chunk.number, parity);
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(result, kChunkBytes, patience));
  std::vector<const char*> sources;
  for (size_t host = 0; host < hosts_->count(); ++host) {
    const Round piece = LevelPiece(call, chunk, hosts_->place, host);
    sources.clear();
    for (const int rank : hosts_->local()) {
      const bool staged = rank != this->rank() || HasParts(call.collective);
      const char* const input =
          staged ? stage(rank, 0) + InputPlace(chunk.number, parity) : call.input + chunk.begin;
      sources.push_back(input + piece.begin);
    }
    Reduce(call.dtype, call.op, sources, piece.length / SizeOf(call.dtype), result + piece.begin,
           nullptr);
    if (host != hosts_->host) Offer(hosts_->Across(host), result + piece.begin, piece.length);
  }
  return OkStatus();
}

Status Group::SendPart(const Call& call, const Round& chunk, int parity, const Patience& patience) {
  char* const to = own_stage(0) + SharePlace(chunk.number, parity) +
                   LevelPiece(call, chunk, hosts_->place, hosts_->host).begin;
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(to, chunk.length, patience));
  std::memcpy(to, call.input + chunk.begin, chunk.length);
  OfferAcross(to, chunk.length);
  return OkStatus();
}

Status Group::SendShare(const Call& call, const Round& chunk, int parity,
                        const Patience& patience) {
  if (hosts_->host != hosts_->Of(call.root) || !hosts_->has_lane()) return OkStatus();
  char* const to = own_stage(0) + SharePlace(chunk.number, parity);
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(to, kChunkBytes, patience));
  const Round share = LevelPiece(call, chunk, hosts_->place, hosts_->host);
  const char* const from = rank() == call.root
                               ? call.output + chunk.begin
                               : stage(call.root, 0) + InputPlace(chunk.number, parity);
  std::memcpy(to + share.begin, from + share.begin, share.length);
  OfferAcross(to + share.begin, share.length);
  return OkStatus();
}

Status Group::ReduceAcross(const Call& call, const Round& chunk, int parity,
                           const Patience& /*patience*/) {
  if (!hosts_->has_lane()) return OkStatus();
  const Round piece = LevelPiece(call, chunk, hosts_->place, hosts_->host);
  const size_t at = SharePlace(chunk.number, parity) + piece.begin;
  std::vector<const char*> sources;
  for (size_t host = 0; host < hosts_->count(); ++host) {
    sources.push_back(stage(hosts_->Across(host), 0) + at);
  }
  const bool ends = call.collective == Collective::kReduceScatter;
  char* const result = ends ? call.output + chunk.begin : own_stage(0) + at;
  Combine(call, sources, piece.length, result, nullptr);
  if (call.collective == Collective::kAllReduce) OfferAcross(result, piece.length);
  if (call.collective == Collective::kReduce && hosts_->host != hosts_->Of(call.root)) {
    Offer(hosts_->Across(hosts_->Of(call.root)), result, piece.length);
  }
  return OkStatus();
}

Status Group::CollectShare(const Call& call, const Round& chunk, int parity,
                           const Patience& patience) {
  if (!hosts_->has_lane()) return OkStatus();
  if (call.collective == Collective::kReduce && hosts_->host != hosts_->Of(call.root)) {
    return OkStatus();
  }
  const size_t place = SharePlace(chunk.number, parity);
  // The other hosts have what they were sent of it, but the card may not have said so.
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(own_stage(0) + place, kChunkBytes, patience));
  for (size_t host = 0; host < hosts_->count(); ++host) {
    if (host == hosts_->host) continue;
    const Round piece = LevelPiece(call, chunk, hosts_->place, host);
    std::memcpy(own_stage(0) + place + piece.begin,
                stage(hosts_->Across(host), 0) + place + piece.begin, piece.length);
  }
  return OkStatus();
}

Status Group::CopyToOutput(const Call& call, const Round& chunk, int parity,
                           const Patience& /*patience*/) {
  if (call.collective == Collective::kBroadcast && rank() == call.root) return OkStatus();
  if (call.collective == Collective::kReduce && rank() != call.root) return OkStatus();
  const size_t bytes = call.count * SizeOf(call.dtype);
  const bool gathers = call.collective == Collective::kAllGather;
  const size_t lanes = hosts_->lanes();
  for (size_t i = 0; i < lanes; ++i) {
    const size_t place = (hosts_->place + i) % lanes;
    const char* const from = stage(hosts_->local()[place], 0) + SharePlace(chunk.number, parity);
    for (size_t host = 0; host < hosts_->count(); ++host) {
      const Round piece = LevelPiece(call, chunk, place, host);
      const auto rank = static_cast<size_t>(hosts_->ranks[host][place]);
      const size_t to = gathers ? rank * bytes : piece.begin;
      std::memcpy(call.output + chunk.begin + to, from + piece.begin, piece.length);
    }
  }
  return OkStatus();
}

// Stages the first chunk.
Status Group::StartTwoLevels(const Call& call, int parity, const Patience& patience) {
  const Levels levels = LevelsOf(call.collective);
  if (levels.stage == nullptr) return OkStatus();
  return (this->*levels.stage)(call, LevelChunk(call, 0), parity, patience);
}

// All members have announced StartTwoLevels().
Status Group::RunTwoLevels(const Call& call, int parity, const Patience& patience) {
  const Levels levels = LevelsOf(call.collective);
  const size_t chunks = LevelChunks(call);
  // The steps that end the halves of the last turn. All members have the same ones.
  uint32_t first = progress_.step();
  uint32_t second = first;
  const auto wait_for = [&](uint32_t step) {
    return progress_.WaitForAll(patience, progress_.step() - step);
  };
  for (size_t turn = 1; turn <= chunks + levels.spread.size(); ++turn) {
    const auto run = [&](Levels::Step step, size_t number) {
      if (step == nullptr || number >= chunks) return OkStatus();
      return (this->*step)(call, LevelChunk(call, number), parity, patience);
    };
    if (turn <= chunks) {
      RDMA_RETURN_IF_ERROR(wait_for(first));
      RDMA_RETURN_IF_ERROR(run(levels.stage, turn));
      RDMA_RETURN_IF_ERROR(run(levels.combine, turn - 1));
      RDMA_RETURN_IF_ERROR(Announce(patience));
      first = progress_.step();
    }
    if (turn > 1) {
      RDMA_RETURN_IF_ERROR(wait_for(second));
      for (size_t i = 0; i < levels.spread.size() && turn >= i + 2; ++i) {
        RDMA_RETURN_IF_ERROR(run(levels.spread[i], turn - i - 2));
      }
      RDMA_RETURN_IF_ERROR(Announce(patience));
    }
    second = progress_.step();
  }
  // The next call may use any place.
  return progress_.WaitForAll(patience);
}

}  // namespace rdma_transport::collectives
