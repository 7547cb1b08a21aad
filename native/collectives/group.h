// Collectives of the members of one host, over shared memory.
//
// Each call is a sequence of steps. In a step, a member writes to its own memory, announces that,
// waits until all members have, and reads the memory of the others. The first step of each call
// also exchanges descriptors, so all members find out at once that they do not call the same.
//
//   small all-reduce        one step: each member reads all contributions
//   large all-reduce        each member reduces its share out of the others' memory, and they read
//                           the result there; chunks overlap
//   all others              rounds: each member stages its part of a round, and the others read it
//
// Contributions are combined in the order of ranks, so the result has the same bits on each member
// and in each run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/board.h"
#include "collectives/mesh.h"
#include "collectives/progress.h"
#include "collectives/types.h"

namespace rdma_transport::collectives {

// One member's part of a collective. The caller owns the arrays, which are contiguous, aligned for
// `dtype`, and either the same as described or disjoint.
struct Call {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  // of kBroadcast
  // Elements: of both arrays (kAllReduce, kBroadcast), of `output` (kReduceScatter), of `input`
  // (kAllGather), or for each member (kAllToAll). The other array has this many for each member.
  uint64_t count = 0;
  // May be equal to `output`. kReduceScatter and kAllGather: may also be this member's part of the
  // larger array. Not used by kBroadcast.
  const char* input = nullptr;
  char* output = nullptr;
};

struct Round;

// One member's end of a group. Thread-safe; calls run one after the other.
//
// InvalidArgument: the call is wrong, or members do not call the same; all members get an error,
// and the group goes on. Any other error ends the group: all later calls return it.
class Group {
 public:
  // `mesh` is ready (WaitReady()). `spin`: how long a member spins before it sleeps.
  Group(std::unique_ptr<Mesh> mesh, Nanos spin);
  ~Group();

  Mesh* mesh() const { return mesh_.get(); }
  int rank() const { return mesh_->rank(); }
  int size() const { return mesh_->size(); }

  Status Run(const Call& call, const Patience& patience);

 private:
  Status Check(const Call& call) const;
  void RunAlone(const Call& call);
  Status Start(const Call& call, const Patience& patience);
  Status Compare(int parity) const;
  Descriptor Describe(const Call& call) const;

  size_t BytesOfRound(const Call& call) const;
  Status RunRounds(const Call& call, int parity, const Patience& patience);
  void Fill(const Call& call, const Round& round, char* stage) const;
  void Read(const Call& call, const Round& round, int stage);
  void ReadReduced(const Call& call, const Round& round, int stage, size_t place);

  bool TwoPhases(const Call& call) const;
  Round Chunk(const Call& call, size_t number) const;
  Round Share(const Round& chunk, int rank) const;
  void FillChunk(const Call& call, const Round& chunk, int parity) const;
  void ReduceChunk(const Call& call, const Round& chunk, int parity);
  void CopyChunk(const Call& call, const Round& chunk, int parity) const;
  Status RunTwoPhases(const Call& call, int parity, const Patience& patience);
  Status RunDirect(const Call& call, int parity, const Patience& patience);

  const char* stage(int rank, int number) const {
    return memory_[rank] + kBoardBytes + static_cast<size_t>(number) * kStageBytes;
  }
  char* own_stage(int number) const { return const_cast<char*>(stage(rank(), number)); }
  const Board& board(int rank) const { return *reinterpret_cast<const Board*>(memory_[rank]); }

  const std::unique_ptr<Mesh> mesh_;
  const std::vector<const char*> memory_;  // of each rank
  std::mutex mu_;                          // held during a call; guards all below
  Progress progress_;
  uint64_t calls_ = 0;
  Status failed_;
  std::vector<const char*> sources_;  // scratch of a reduction
};

}  // namespace rdma_transport::collectives
