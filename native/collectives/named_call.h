// A collective that is matched by name, as a member starts it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
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
  // Unique among the calls that this member has started and that have not ended. Another one ends
  // with an error on all members.
  std::string name;
  bool twice = false;  // set by Start(): the name was not unique
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
  // Owns the arrays of kAllReduce. Members on other hosts may write an output until it ends, which
  // is later than `done` if the group has failed. Null: outputs are copied.
  std::shared_ptr<const void> keeper;
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

}  // namespace rdma_transport::collectives
