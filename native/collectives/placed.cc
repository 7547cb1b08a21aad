// An all-reduce of large arrays that all members may write, none of which maps another's memory:
// two phases without staging. Each member sends the others' shares of a chunk from its array to
// places in their replicas of it, combines its own share out of these into its array, and sends
// that to where it belongs in the arrays of the others.
#include "collectives/group.h"
#include "collectives/round.h"

namespace rdma_transport::collectives {
namespace {

// A member sends so many chunks before it waits for the first one. A place is free again when all
// have reduced chunk n - kPlaces: before a member sends chunk n, it has reduced chunk n - kAhead,
// so all have sent that, and before that reduced chunk n - 2 * kAhead.
constexpr size_t kAhead = 4;
constexpr size_t kPlaces = 2 * kAhead;
static_assert(kPlaces <= kParts);

size_t PlaceOf(size_t number) { return kBoardBytes + number % kPlaces * kPartBytes; }

// How many steps a member has taken when it has sent a chunk. It takes one for each chunk that it
// sends, and for each that it has reduced.
uint32_t StepsTo(size_t number) {
  const size_t reduced = number < kAhead ? 0 : number - kAhead + 1;
  return static_cast<uint32_t>(number + 1 + reduced);
}

}  // namespace

// A share fits into a place.
Round Group::PlacedChunk(const Call& call, size_t number) const {
  const size_t bytes = call.count * SizeOf(call.dtype);
  return PartOf(bytes, memory_.size() * kPartBytes, number);
}

Status Group::SendChunk(const Call& call, size_t number, const Patience& patience) {
  const Round chunk = PlacedChunk(call, number);
  for (const int rank : remote_) {
    const Round share = Share(chunk, rank);
    offered_[rank] = {call.input + chunk.begin + share.begin, share.length, 0, PlaceOf(number)};
  }
  return Announce(patience);
}

Status Group::ReducePlacedChunk(const Call& call, size_t number, int parity,
                                const Patience& patience) {
  const Round chunk = PlacedChunk(call, number);
  const Round own = Share(chunk, rank());
  const size_t begin = chunk.begin + own.begin;
  for (int rank = 0; rank < size(); ++rank) {
    sources_[rank] = rank == this->rank() ? call.input + begin : memory_[rank] + PlaceOf(number);
  }
  Combine(call, sources_, own.length, call.output + begin, nullptr);
  for (const int rank : remote_) {
    const Descriptor other = board(rank).descriptors[parity];
    offered_[rank] = {call.output + begin, own.length, other.key, other.output + begin};
  }
  return Announce(patience);
}

Status Group::ReducePlaced(const Call& call, int parity, const Patience& patience) {
  const uint32_t start = progress_.step();
  const auto exists = [&](size_t number) { return PlacedChunk(call, number).length > 0; };
  for (size_t number = 0; number < kAhead && exists(number); ++number) {
    RDMA_RETURN_IF_ERROR(SendChunk(call, number, patience));
  }
  for (size_t number = 0; exists(number); ++number) {
    const uint32_t behind = progress_.step() - (start + StepsTo(number));
    RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience, behind));
    RDMA_RETURN_IF_ERROR(ReducePlacedChunk(call, number, parity, patience));
    if (!exists(number + kAhead)) continue;
    RDMA_RETURN_IF_ERROR(SendChunk(call, number + kAhead, patience));
  }
  RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience));
  for (size_t part = 0; part < kParts; ++part) {
    RDMA_RETURN_IF_ERROR(mesh_->WaitWritten(part, patience));
  }
  return OkStatus();
}

}  // namespace rdma_transport::collectives
