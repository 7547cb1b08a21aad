// Two phases: each member combines its share of a chunk out of the memory of all members, and the
// others copy the result from there. Of a broadcast, it copies its share from the root.

#include <cstring>

#include "collectives/group.h"
#include "collectives/round.h"

namespace rdma_transport::collectives {
namespace {

// Two stages hold four chunks, so that the steps of consecutive chunks overlap.
constexpr int kResults = 2;  // the first stage of results

size_t Place(size_t number, int parity) {
  return (static_cast<size_t>(parity) * 2 + number) % 4 * kChunkBytes;
}

}  // namespace

Round Group::Chunk(const Call& call, size_t number) const {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const size_t chunks = ChunksOf(bytes);
  return PartOf(bytes, RoundUp((bytes + chunks - 1) / chunks), number);
}

// The part of a chunk that a member reduces.
Round Group::Share(const Round& chunk, int rank) const {
  return Divide({0, 0, chunk.length}, memory_.size(), static_cast<size_t>(rank));
}

Status Group::FillChunk(const Call& call, const Round& chunk, int parity,
                        const Patience& patience) {
  char* const to = own_stage(0) + Place(chunk.number, parity);
  const bool broadcast = call.collective == Collective::kBroadcast;
  if (broadcast && rank() != call.root) return OkStatus();
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(to, chunk.length, patience));
  const char* const from = (broadcast ? call.output : call.input) + chunk.begin;
  const Round own = Share(chunk, rank());
  const size_t end = own.begin + own.length;
  std::memcpy(to, from, own.begin);
  std::memcpy(to + end, from + end, chunk.length - end);
  for (const int rank : remote_) {
    const Round share = Share(chunk, rank);
    Offer(rank, to + share.begin, share.length);
  }
  return OkStatus();
}

Status Group::ReduceChunk(const Call& call, const Round& chunk, int parity,
                          const Patience& patience) {
  const Round own = Share(chunk, rank());
  const size_t place = Place(chunk.number, parity);
  char* const result = own_stage(kResults) + place + own.begin;
  // Of kReduce, at the root only.
  char* const output = call.output == nullptr ? nullptr : call.output + chunk.begin + own.begin;
  RDMA_RETURN_IF_ERROR(WaitToOverwrite(result, own.length, patience));
  for (int rank = 0; rank < size(); ++rank) {
    sources_[rank] = rank == this->rank() ? call.input + chunk.begin + own.begin
                                          : stage(rank, 0) + place + own.begin;
  }
  if (call.collective != Collective::kBroadcast) {
    Combine(call, sources_, own.length, result, output);
  } else if (rank() == call.root) {
    std::memcpy(result, output, own.length);
  } else {
    std::memcpy(result, sources_[call.root], own.length);
    std::memcpy(output, result, own.length);
  }
  for (const int rank : remote_) {
    if (call.collective == Collective::kBroadcast && rank == call.root) continue;
    if (call.collective == Collective::kReduce && rank != call.root) continue;
    Offer(rank, result, own.length);
  }
  return OkStatus();
}

void Group::CopyChunk(const Call& call, const Round& chunk, int parity) const {
  const size_t place = Place(chunk.number, parity);
  if (call.collective == Collective::kBroadcast && rank() == call.root) return;
  if (call.collective == Collective::kReduce && rank() != call.root) return;
  for (int i = 1; i < size(); ++i) {
    const int rank = (this->rank() + i) % size();
    const Round share = Share(chunk, rank);
    std::memcpy(call.output + chunk.begin + share.begin,
                stage(rank, kResults) + place + share.begin, share.length);
  }
}

// The first chunk has been staged and announced by all. Members announce a staged chunk, and a
// reduced chunk, in turns: the step "2n + 1" of a call is that chunk n has been reduced, and the
// step before that chunk n + 1 has been staged.
Status Group::RunTwoPhases(const Call& call, int parity, const Patience& patience) {
  Round chunk = Chunk(call, 0);
  const size_t bytes = call.count * SizeOf(call.dtype);
  Round previous;
  while (true) {
    const Round next = Chunk(call, chunk.number + 1);
    // Overwrites chunk n - 3, which all have reduced.
    if (next.length > 0) RDMA_RETURN_IF_ERROR(FillChunk(call, next, parity, patience));
    RDMA_RETURN_IF_ERROR(Announce(patience));
    if (chunk.number > 0) RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience, /*behind=*/2));
    RDMA_RETURN_IF_ERROR(ReduceChunk(call, chunk, parity, patience));
    RDMA_RETURN_IF_ERROR(Announce(patience));
    if (chunk.number > 0) {
      RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience, /*behind=*/2));
      CopyChunk(call, previous, parity);
    }
    previous = chunk;
    if (chunk.begin + chunk.length == bytes) break;
    chunk = next;
  }
  RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience));
  CopyChunk(call, previous, parity);
  return OkStatus();
}

// All arrays are registered: members read them where they lie.
Status Group::ReduceDirect(const Call& call, int parity, const Patience& patience) {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const Round all = {0, 0, bytes};
  const Round own = Share(all, rank());
  std::vector<fabric::MappedSpan> inputs(memory_.size());
  std::vector<fabric::MappedSpan> outputs(memory_.size());
  for (int rank = 0; rank < size(); ++rank) {
    sources_[rank] = call.input + own.begin;
    if (rank == this->rank()) continue;
    const Descriptor other = board(rank).descriptors[parity];
    RDMA_RETURN_IF_ERROR(
        mesh_->Map(rank, {other.key, other.input, bytes}, patience, &inputs[rank]));
    RDMA_RETURN_IF_ERROR(
        mesh_->Map(rank, {other.key, other.output, bytes}, patience, &outputs[rank]));
    sources_[rank] = inputs[rank].data + own.begin;
  }
  Combine(call, sources_, own.length, call.output + own.begin, nullptr);
  RDMA_RETURN_IF_ERROR(Announce(patience));
  RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience));
  for (int i = 1; i < size(); ++i) {
    const int rank = (this->rank() + i) % size();
    const Round share = Share(all, rank);
    std::memcpy(call.output + share.begin, outputs[rank].data + share.begin, share.length);
  }
  RDMA_RETURN_IF_ERROR(Announce(patience));  // the arrays are the callers' again
  return progress_.WaitForAll(patience);
}

}  // namespace rdma_transport::collectives
