// Collectives that are matched by name. Members may start them in any order, another one on each,
// as the operations of a dataflow graph do.
//
// Members take part in rounds. In a round, each announces what it has started since the last one,
// so all members have the same table of what is waiting for whom. What all have announced they then
// carry out, in the order of that table. A member starts a round when it has something to announce,
// and joins one that another member has started. There is no coordinator and no cycle: an idle
// member sleeps.
//
// Small reductions that are ready at once are carried out as one. That changes no bits: elements
// are combined in the order of ranks, whatever else is reduced with them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/group.h"
#include "collectives/types.h"

namespace rdma_transport::collectives {

// One array of a call. The caller owns the memory, aligned for its type, until `done`.
struct NamedArray {
  const char* input = nullptr;
  // As large as the input, and may be the same (kAllReduce, kBroadcast). Of other collectives it
  // comes from NamedCall::allocate.
  char* output = nullptr;
  uint64_t rows = 1;        // the first dimension
  uint64_t row_length = 0;  // elements of a row
  // All dimensions, which members compare and messages show. Empty: as if {rows, row_length}.
  std::vector<uint64_t> shape;
};

// What a call gives, besides its outputs.
struct NamedResult {
  std::vector<uint64_t> rows;  // of kAllGather (of the first array) and kAllToAll, by rank
  int last = -1;               // of a join: the rank that joined last
};

struct NamedCall {
  // Unique among the calls that this member has started and that have not ended.
  std::string name;
  // kBarrier, kAllReduce, kAllGather, kBroadcast, kReduceScatter or kAllToAll.
  Collective collective = Collective::kBarrier;
  // This member has no more data: until all have joined, it takes part in the reductions of the
  // others with zeros. `collective` is kBarrier, and there are no arrays.
  bool joins = false;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool average = false;   // divide the sum by the number of members; of integers, rounds to zero
  double prescale = 1.0;  // factors for the inputs and the outputs of a reduction
  double postscale = 1.0;
  int root = 0;  // of kBroadcast
  // All of `dtype`. More than one (kAllReduce, kAllGather, kReduceScatter): a grouped call.
  // kAllReduce, kBroadcast: members have the same shapes. kAllGather, kAllToAll: rows may differ.
  // kReduceScatter divides the rows; the first ranks get one more if they cannot be divided evenly.
  std::vector<NamedArray> arrays;
  std::vector<uint64_t> splits;  // of kAllToAll: rows for each rank
  // Returns memory for the output of an array, of so many rows; null if there is none. Called on
  // the thread of the calls, at most once for each array.
  std::function<char*(size_t array, uint64_t rows)> allocate;
  // Called once, on the thread of the calls or on that of Start(). Must not block.
  std::function<void(const Status& status, const NamedResult& result)> done;
};

struct NamedOptions {
  std::vector<int> ranks;              // of the members, for messages; empty: as in the group
  Nanos stall_warning = 60 * kSecond;  // a call that waits for members so long is logged; 0: never
  Nanos stall_timeout = 0;             // and so long fails on all members with it; 0: never
};

// One member's end of a group whose collectives are matched by name. Thread-safe. It has a thread,
// which takes part in what others start, and handles no signals.
//
// Errors, on all members alike: InvalidArgument, which names ranks and what differs, if members do
// not call the same under a name, or one uses a name twice at once; DeadlineExceeded after
// `stall_timeout`. The other calls go on. Any other error, such as the loss of a member, ends the
// group, and all calls with it.
class NamedCalls {
 public:
  // No one else may use the group.
  NamedCalls(std::unique_ptr<Group> group, NamedOptions options);
  ~NamedCalls();

  int rank() const;
  int size() const;
  // To share memory with the others, who read large arrays there where they lie. While it exists.
  Mesh* mesh() const;

  void Start(NamedCall call);
  // Ends all calls, and those that follow, with Cancelled. When it returns, no memory of them is
  // used. Not to be called by `done`.
  void Close(const std::string& reason);

  // The calls of this process by number, through which operations of TensorFlow find them.
  static void Publish(int number, std::shared_ptr<NamedCalls> calls);  // null removes it
  static std::shared_ptr<NamedCalls> Find(int number);                 // null: there are none

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rdma_transport::collectives
