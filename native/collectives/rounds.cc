// Collectives in rounds: each member stages a part of its array, and the others read it there.

#include <cstring>

#include "collectives/group.h"
#include "collectives/reduce.h"
#include "collectives/round.h"

namespace rdma_transport::collectives {
namespace {

void Copy(char* to, const char* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

// The bytes of each array, or of each member's part of the larger one, in one round.
size_t Group::BytesOfRound(const Call& call) const {
  const bool pieces =
      call.collective == Collective::kAllToAll || call.collective == Collective::kReduceScatter;
  const size_t bytes = pieces ? kStageBytes / static_cast<size_t>(size()) : kStageBytes;
  return bytes / kLine * kLine;
}

// Stages this member's part of a round.
Status Group::Stage(const Call& call, const Round& round, int stage, const Patience& patience) {
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(own_stage(stage), kStageBytes, patience));
  Fill(call, round, own_stage(stage));
  return OkStatus();
}

void Group::Fill(const Call& call, const Round& round, char* to) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  switch (call.collective) {
    case Collective::kBarrier:
    case Collective::kInvalid:
      return;
    case Collective::kBroadcast:
      if (rank() != call.root) return;
      Copy(to, call.output + round.begin, round.length);
      break;
    case Collective::kAllReduce:
    case Collective::kAllGather:
      Copy(to, call.input + round.begin, round.length);
      break;
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      for (int rank = 0; rank < size(); ++rank) {
        const auto place = static_cast<size_t>(rank);
        if (rank == this->rank()) continue;
        char* const piece = to + place * BytesOfRound(call);
        Copy(piece, call.input + place * bytes + round.begin, round.length);
        Offer(rank, piece, round.length);
      }
      return;
  }
  for (const int rank : remote_) Offer(rank, to, round.length);
}

// Combines what all members have at `place` of their stage.
void Group::ReadReduced(const Call& call, const Round& round, int stage, size_t place) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const size_t own_part =
      call.collective == Collective::kAllReduce ? 0 : static_cast<size_t>(rank()) * bytes;
  for (int rank = 0; rank < size(); ++rank) {
    sources_[rank] = rank == this->rank() ? call.input + own_part + round.begin
                                          : this->stage(rank, stage) + place;
  }
  Reduce(call.dtype, call.op, sources_, round.length / SizeOf(call.dtype),
         call.output + round.begin, nullptr);
}

// Reads the other members' parts of a round.
void Group::Read(const Call& call, const Round& round, int stage) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const size_t piece = static_cast<size_t>(rank()) * BytesOfRound(call);
  switch (call.collective) {
    case Collective::kBarrier:
    case Collective::kInvalid:
      return;
    case Collective::kBroadcast:
      if (rank() == call.root) return;
      return Copy(call.output + round.begin, this->stage(call.root, stage), round.length);
    case Collective::kAllReduce:
      return ReadReduced(call, round, stage, 0);
    case Collective::kReduceScatter:
      return ReadReduced(call, round, stage, piece);
    case Collective::kAllGather:
    case Collective::kAllToAll:
      break;
  }
  const bool gathers = call.collective == Collective::kAllGather;
  for (int rank = 0; rank < size(); ++rank) {
    char* const to = call.output + static_cast<size_t>(rank) * bytes + round.begin;
    if (rank == this->rank()) {
      Copy(to, call.input + (gathers ? 0 : static_cast<size_t>(rank) * bytes) + round.begin,
           round.length);
    } else {
      Copy(to, this->stage(rank, stage) + (gathers ? 0 : piece), round.length);
    }
  }
}

// The first round has been staged and announced.
Status Group::RunRounds(const Call& call, int parity, const Patience& patience) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const size_t size = BytesOfRound(call);
  auto round = PartOf(bytes, size, 0);
  Read(call, round, parity);
  if (round.length == bytes) return OkStatus();
  while (round.begin + round.length < bytes) {
    round = PartOf(bytes, size, round.number + 1);
    const int stage = (parity + static_cast<int>(round.number % 2)) % 2;
    // All have announced the previous round, so they have read the one before.
    RDMA_RETURN_IF_ERROR(Stage(call, round, stage, patience));
    RDMA_RETURN_IF_ERROR(Announce(patience));
    RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience));
    Read(call, round, stage);
  }
  // The next call may use either stage.
  RDMA_RETURN_IF_ERROR(Announce(patience));
  return progress_.WaitForAll(patience);
}

}  // namespace rdma_transport::collectives
