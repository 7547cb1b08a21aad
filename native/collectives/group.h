// Collectives of a group of processes, on one host or on several.
//
// Each call is a sequence of steps. In a step, a member writes to its own memory, announces that,
// waits until all members have, and reads the memory of the others. It reads a replica if it cannot
// map that memory; the announcement then carries what it needs, and nothing else. The first step of
// each call also exchanges descriptors, so all members find out at once that they do not call the
// same.
//
//   kRounds       each member stages its part of a round, and the others read it
//   kTwoPhases    each member combines its share out of the others' memory, and they read the
//                 result there; chunks overlap. Between hosts, arrays that all may write are sent
//                 from where they lie, and results to where they belong (placed.cc)
//   kTwoLevels    steps on each host and between hosts take turns, so that no byte is sent twice
//
// algorithm.h chooses one of them.
//
// Contributions are combined in the order of ranks, on two levels first on each host and then in
// the order of hosts. So the result has the same bits on each member and in each run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/algorithm.h"
#include "collectives/board.h"
#include "collectives/hosts.h"
#include "collectives/mesh.h"
#include "collectives/progress.h"
#include "collectives/scale.h"
#include "collectives/types.h"

namespace rdma_transport::collectives {

// What a member of kExchange sends to another one, and receives from it.
struct Parcel {
  const char* from = nullptr;
  char* to = nullptr;
  uint64_t sent = 0;  // bytes
  uint64_t received = 0;
};

// One member's part of a collective. The caller owns the arrays, which are contiguous, aligned for
// `dtype`, and either the same as described or disjoint.
struct Call {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;  // of kBroadcast, kGather, kScatter and kReduce
  // Elements: of both arrays (kAllReduce, kReduce, kBroadcast), of `output` (kReduceScatter,
  // kScatter), of `input` (kAllGather, kGather), or for each member (kAllToAll). The other array
  // has this many for each member. Not used by kExchange.
  uint64_t count = 0;
  // May be equal to `output`, or where one array is larger, this member's part of that. Not used by
  // kBroadcast and kExchange, nor by kScatter except at the root.
  const char* input = nullptr;
  char* output = nullptr;  // of kGather and kReduce, at the root only
  // Of kExchange: by rank, this one included. What is sent and received does not overlap.
  std::vector<Parcel> pieces;
  // What happens to each element that has been combined.
  Scale after;
  // Of kAllReduce: contributions are combined in the order of ranks, whatever the size.
  bool by_rank = false;
  // Owns the arrays. With it, members of other hosts write results into `output` if that lies in
  // memory of Mesh::Share(), and may still do so after a call that ended the group; until they have
  // let go, the mesh keeps this.
  std::shared_ptr<const void> keeper;
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

  // For a member that does not know when calls begin. Waits until another member has started one
  // that this member has not, until `ready` returns true, or until `deadline`. May return early.
  void WaitForStart(Nanos deadline, const std::function<bool()>& ready);
  // Makes it look again. Also called when a member is lost.
  void Wake() const { progress_.Wake(); }
  // Whether another member has started a call that this one has not.
  bool Ahead();
  // Whether a member has been lost.
  bool AnyLost() const { return any_lost_.load(); }
  // The steps of this member, and the members that have taken fewer. Only for the thread of a call.
  uint32_t step() const { return progress_.step(); }
  std::vector<int> Behind() const { return progress_.Behind(); }

 private:
  Status Check(const Call& call) const;
  void RunAlone(const Call& call);
  Status Agree(const Patience& patience);
  Status AgreeOnHosts(const std::vector<int>& lowest, const Patience& patience);
  Status Exchange(const Descriptor& own, const Patience& patience, int* parity);
  Status Start(const Call& call, const Patience& patience);
  Status Compare(int parity) const;
  uint64_t LargestPiece(int parity) const;
  Status FindUneven(const Patience& patience);
  Descriptor Describe(const Call& call) const;
  bool CanBeRead(const Call& call, fabric::RemoteSpan* span) const;
  bool CanBePlaced(const Call& call, fabric::RemoteSpan* output) const;
  Algorithm AlgorithmFor(const Call& call) const;

  // Announces a step, with the spans that Offer() has collected. `descriptor`: of the first step of
  // a call.
  Status Announce(const Patience& patience, const Descriptor* descriptor = nullptr, int parity = 0);
  // A remote member is to read these bytes of this member's memory in the next step.
  void Offer(int rank, const char* begin, size_t length);
  // Waits until this memory, `bytes` of a stage, is not being sent any more.
  Status WaitToOverwrite(const char* begin, size_t bytes, const Patience& patience) const;

  size_t BytesOfRound(const Call& call) const;
  // Combines `sources`, of so many bytes, into `out`, and copies that to `copy` unless it is null.
  void Combine(const Call& call, const std::vector<const char*>& sources, size_t bytes, char* out,
               char* copy);
  Status RunRounds(const Call& call, size_t bytes, int parity, const Patience& patience);
  Status Stage(const Call& call, const Round& round, int stage, const Patience& patience);
  void Fill(const Call& call, const Round& round, char* stage);
  void ReadStages(const Call& call, const Round& round, int stage);
  void Read(const Call& call, const Round& round);
  void FillPieces(const Call& call, const Round& round, char* stage);
  void ReadPieces(const Call& call, const Round& round);
  void ReadReduced(const Call& call, const Round& round);
  Status ReadDirect(const Call& call, int parity, const Patience& patience);

  Round Chunk(const Call& call, size_t number) const;
  Round Share(const Round& chunk, int rank) const;
  Status FillChunk(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status ReduceChunk(const Call& call, const Round& chunk, int parity, const Patience& patience);
  void CopyChunk(const Call& call, const Round& chunk, int parity) const;
  Status RunTwoPhases(const Call& call, int parity, const Patience& patience);
  Status ReduceDirect(const Call& call, int parity, const Patience& patience);

  Round PlacedChunk(const Call& call, size_t number) const;
  Status SendChunk(const Call& call, size_t number, const Patience& patience);
  Status ReducePlacedChunk(const Call& call, size_t number, int parity, const Patience& patience);
  Status ReducePlaced(const Call& call, int parity, const Patience& patience);

  // The steps that each chunk takes on two levels, one in each turn; null: nothing is done.
  struct Levels {
    using Step = Status (Group::*)(const Call&, const Round& chunk, int parity, const Patience&);
    Step stage = nullptr;
    Step combine = nullptr;
    std::vector<Step> spread;
  };
  static Levels LevelsOf(Collective collective);
  size_t LevelChunks(const Call& call) const;
  Round LevelChunk(const Call& call, size_t number) const;
  Round LevelPiece(const Call& call, const Round& chunk, size_t place, size_t host) const;
  void OfferAcross(const char* begin, size_t length);
  Status StageArray(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status StageParts(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status ReduceOnHost(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status SendPart(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status SendShare(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status ReduceAcross(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status CollectShare(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status CopyToOutput(const Call& call, const Round& chunk, int parity, const Patience& patience);
  Status StartTwoLevels(const Call& call, int parity, const Patience& patience);
  Status RunTwoLevels(const Call& call, int parity, const Patience& patience);

  const char* stage(int rank, int number) const {
    return memory_[rank] + kBoardBytes + static_cast<size_t>(number) * kStageBytes;
  }
  char* own_stage(int number) const { return const_cast<char*>(stage(rank(), number)); }
  const Board& board(int rank) const { return *reinterpret_cast<const Board*>(memory_[rank]); }

  const std::unique_ptr<Mesh> mesh_;
  const std::vector<const char*> memory_;  // of each rank, or its replica
  const std::vector<int> remote_;          // ranks that cannot map this member's memory
  std::atomic<bool> any_lost_{false};
  std::mutex mu_;  // held during a call; guards all below
  Progress progress_;
  uint64_t calls_ = 0;
  Status failed_;
  bool agreed_ = false;
  Reach reach_ = Reach::kAll;         // the same on all members
  std::optional<Hosts> hosts_;        // if kHost
  std::vector<Span> offered_;         // to each rank, in the next step
  std::vector<const char*> parts_;    // of each rank, for this one; scratch of a round
  std::vector<const char*> sources_;  // scratch of a reduction
  Descriptor uneven_;                 // of a piece that differs from what this member expects
};

}  // namespace rdma_transport::collectives
