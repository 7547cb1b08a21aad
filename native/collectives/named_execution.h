// Carries out collectives that all members have called under a name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collectives/group.h"
#include "collectives/named_call.h"
#include "collectives/named_table.h"
#include "collectives/scale.h"

namespace rdma_transport::collectives {

// Returns InvalidArgument if a call is wrong by itself.
Status CheckCall(const NamedCall& call, int size);

// Memory that grows as needed, and is aligned for all types; large memory is read by the members of
// this host where it lies. Not thread-safe.
class Scratch {
 public:
  // Returns `bytes` bytes, which are valid until the next call; null if there is no memory.
  char* Get(size_t bytes);
  // Returns what keeps them valid for longer.
  std::shared_ptr<const void> keeper() const { return data_; }
  // Frees much memory.
  void Trim();

 private:
  std::shared_ptr<char> data_;
  size_t bytes_ = 0;
};

// A name that all have called, and what this member has to do.
struct NamedWork {
  NamedMatch match;
  std::vector<NamedCall> calls;    // none if it has joined; several if it has used the name twice
  std::vector<NamedArray> arrays;  // as the call's, or the same without memory
  Status status;
  NamedResult result;
  size_t left = 0;  // arrays that are to be reduced
};

// Not thread-safe.
class NamedExecution {
 public:
  // `ranks`: for messages. `end` is called once for each work, when it has ended.
  NamedExecution(Group* group, std::vector<int> ranks, std::function<void(NamedWork*)> end)
      : group_(group), ranks_(std::move(ranks)), end_(std::move(end)) {}

  // All members call it for the same names, in the same order. Returns an error after which the
  // group is of no use, and some works have not ended.
  Status Run(std::vector<NamedWork>* works, const Patience& patience);
  // What calls get if a member started two under a name at once.
  Status UsedTwice(int rank, const std::string& name) const;

 private:
  struct Part {
    NamedWork* work;
    size_t array;
  };
  // Small arrays that are reduced as one.
  struct Pack {
    DType dtype;
    ReduceOp op;
    size_t bytes;
    std::vector<Part> parts;
  };

  Status Judge(NamedWork* work, const Patience& patience);
  Status Explain(NamedWork* work, int rank, const Patience& patience);
  Status LearnSizes(NamedWork* work, const Patience& patience);
  void AddToPack(NamedWork* work, size_t array);
  Status RunPack(const Pack& pack, const Patience& patience);
  Status ReduceArray(NamedWork* work, size_t array, const Patience& patience);
  Status RunOne(NamedWork* work, const Patience& patience);
  Status Broadcast(NamedWork* work, const Patience& patience);
  Status Gather(NamedWork* work, const Patience& patience);
  Status GatherArray(NamedWork* work, size_t array, const uint64_t* rows, size_t stride,
                     const Patience& patience);
  Status ReduceScatter(NamedWork* work, size_t array, const Patience& patience);
  Status AllToAll(NamedWork* work, const Patience& patience);
  Status Share(const void* own, size_t bytes, std::vector<char>* all, const Patience& patience);
  Status Output(NamedWork* work, size_t array, uint64_t rows, char** output);
  Status Memory(Scratch* scratch, size_t bytes, char** data);
  void EndArray(NamedWork* work);
  std::string NameOfRank(int rank) const;

  Group* const group_;
  const std::vector<int> ranks_;
  const std::function<void(NamedWork*)> end_;
  std::vector<Pack> packs_;
  Scratch packed_;
  Scratch input_;
  Scratch output_;
};

}  // namespace rdma_transport::collectives
