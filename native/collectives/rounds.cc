// Collectives in rounds: each member stages a part of its array, and the others read it there.

#include <algorithm>
#include <cstring>

#include "collectives/group.h"
#include "collectives/round.h"

namespace rdma_transport::collectives {
namespace {

void Copy(char* to, const char* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// Whether a member has another piece of its input for each member.
bool HasPieces(Collective collective) {
  return collective == Collective::kAllToAll || collective == Collective::kReduceScatter ||
         collective == Collective::kScatter || collective == Collective::kExchange;
}

// The first line of a piece of kExchange has its length, in all rounds.
size_t HeaderOf(const Call& call) { return call.collective == Collective::kExchange ? kLine : 0; }

// A piece that a member was sent differs from what it expects.
Descriptor Uneven(int source, uint64_t sent, uint64_t expected) {
  Descriptor uneven;
  uneven.flags = Descriptor::kUneven;
  uneven.root = source;
  uneven.input = sent;
  uneven.output = expected;
  return uneven;
}

// The part of a piece in a round.
Round PartIn(const Round& round, uint64_t length) {
  const size_t begin = std::min<size_t>(round.begin, length);
  return {round.number, begin, std::min<size_t>(round.begin + round.length, length) - begin};
}

}  // namespace

// The bytes of each array, or of each member's part of the larger one, in one round.
size_t Group::BytesOfRound(const Call& call) const {
  const size_t bytes =
      HasPieces(call.collective) ? kStageBytes / static_cast<size_t>(size()) : kStageBytes;
  return bytes / kLine * kLine - HeaderOf(call);
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
    case Collective::kExchange:
      return FillPieces(call, round, to);
    case Collective::kBroadcast:
      if (rank() != call.root) return;
      Copy(to, call.output + round.begin, round.length);
      break;
    case Collective::kGather:
    case Collective::kReduce:
      if (rank() == call.root) return;
      Copy(to, call.input + round.begin, round.length);
      return Offer(call.root, to, round.length);
    case Collective::kAllReduce:
    case Collective::kAllGather:
      Copy(to, call.input + round.begin, round.length);
      break;
    case Collective::kScatter:
      if (rank() != call.root) return;
      [[fallthrough]];
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

void Group::FillPieces(const Call& call, const Round& round, char* to) {
  for (int rank = 0; rank < size(); ++rank) {
    const auto place = static_cast<size_t>(rank);
    const Parcel& piece = call.pieces[place];
    const Round part = PartIn(round, piece.sent);
    if (rank == this->rank() || (part.length == 0 && round.number > 0)) continue;
    char* const slot = to + place * (kLine + BytesOfRound(call));
    std::memcpy(slot, &piece.sent, sizeof(piece.sent));
    Copy(slot + kLine, piece.from + part.begin, part.length);
    Offer(rank, slot, kLine + part.length);
  }
}

void Group::ReadPieces(const Call& call, const Round& round) {
  for (int rank = 0; rank < size(); ++rank) {
    const Parcel& piece = call.pieces[static_cast<size_t>(rank)];
    uint64_t sent = piece.sent;
    if (rank != this->rank() && round.number == 0) std::memcpy(&sent, parts_[rank], sizeof(sent));
    if (round.number == 0 && sent != piece.received) uneven_ = Uneven(rank, sent, piece.received);
    if ((uneven_.flags & Descriptor::kUneven) != 0) continue;  // the others go on
    const Round part = PartIn(round, piece.received);
    const char* const from = rank == this->rank() ? piece.from + part.begin : parts_[rank] + kLine;
    Copy(piece.to + part.begin, from, part.length);
  }
}

// Combines what all members have for this one.
void Group::ReadReduced(const Call& call, const Round& round) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const size_t own_part =
      call.collective != Collective::kReduceScatter ? 0 : static_cast<size_t>(rank()) * bytes;
  for (int rank = 0; rank < size(); ++rank) {
    sources_[rank] = rank == this->rank() ? call.input + own_part + round.begin : parts_[rank];
  }
  Combine(call, sources_, round.length, call.output + round.begin, nullptr);
}

// Reads what the other members have staged for this one.
void Group::ReadStages(const Call& call, const Round& round, int stage) {
  const size_t piece = HasPieces(call.collective)
                           ? static_cast<size_t>(rank()) * (HeaderOf(call) + BytesOfRound(call))
                           : 0;
  for (int rank = 0; rank < size(); ++rank) parts_[rank] = this->stage(rank, stage) + piece;
  Read(call, round);
}

// Reads the other members' parts of a round.
void Group::Read(const Call& call, const Round& round) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  switch (call.collective) {
    case Collective::kBarrier:
    case Collective::kInvalid:
      return;
    case Collective::kExchange:
      return ReadPieces(call, round);
    case Collective::kBroadcast:
      if (rank() == call.root) return;
      return Copy(call.output + round.begin, parts_[call.root], round.length);
    case Collective::kScatter:
      return Copy(call.output + round.begin,
                  rank() == call.root
                      ? call.input + static_cast<size_t>(rank()) * bytes + round.begin
                      : parts_[call.root],
                  round.length);
    case Collective::kReduce:
      if (rank() != call.root) return;
      [[fallthrough]];
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
      return ReadReduced(call, round);
    case Collective::kGather:
      if (rank() != call.root) return;
      break;
    case Collective::kAllGather:
    case Collective::kAllToAll:
      break;
  }
  const bool gathers = call.collective != Collective::kAllToAll;
  for (int rank = 0; rank < size(); ++rank) {
    char* const to = call.output + static_cast<size_t>(rank) * bytes + round.begin;
    if (rank == this->rank()) {
      Copy(to, call.input + (gathers ? 0 : static_cast<size_t>(rank) * bytes) + round.begin,
           round.length);
    } else {
      Copy(to, parts_[rank], round.length);
    }
  }
}

// The first round has been staged and announced. `bytes`: of what is divided into rounds.
Status Group::RunRounds(const Call& call, size_t bytes, int parity, const Patience& patience) {
  const size_t size = BytesOfRound(call);
  auto round = PartOf(bytes, size, 0);
  ReadStages(call, round, parity);
  if (round.length == bytes) return OkStatus();
  while (round.begin + round.length < bytes) {
    round = PartOf(bytes, size, round.number + 1);
    const int stage = (parity + static_cast<int>(round.number % 2)) % 2;
    // All have announced the previous round, so they have read the one before.
    RDMA_RETURN_IF_ERROR(Stage(call, round, stage, patience));
    RDMA_RETURN_IF_ERROR(Announce(patience));
    RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience));
    ReadStages(call, round, stage);
  }
  // The next call may use either stage.
  RDMA_RETURN_IF_ERROR(Announce(patience));
  return progress_.WaitForAll(patience);
}

// Registered arrays: members read them where they lie, in one round.
Status Group::ReadDirect(const Call& call, int parity, const Patience& patience) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const bool pieces = HasPieces(call.collective);
  const size_t length = pieces ? bytes * static_cast<size_t>(size()) : bytes;
  std::vector<fabric::MappedSpan> inputs(memory_.size());
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == this->rank()) continue;
    if (FromRoot(call.collective) && rank != call.root) continue;
    if (call.collective == Collective::kGather && this->rank() != call.root) break;
    const Descriptor other = board(rank).descriptors[parity];
    RDMA_RETURN_IF_ERROR(
        mesh_->Map(rank, {other.key, other.input, length}, patience, &inputs[rank]));
    parts_[rank] = inputs[rank].data + (pieces ? static_cast<size_t>(this->rank()) * bytes : 0);
  }
  Read(call, {0, 0, bytes});
  RDMA_RETURN_IF_ERROR(Announce(patience));  // the arrays are the callers' again
  return progress_.WaitForAll(patience);
}

}  // namespace rdma_transport::collectives
