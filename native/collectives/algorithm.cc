#include "collectives/algorithm.h"

namespace rdma_transport::collectives {
namespace {

// Two phases are used above `bytes` by groups of this many members or more, up to the next row.
struct Row {
  Collective collective;
  bool mapped;
  int members;
  size_t bytes;
};

// docs/architecture.md says how these were measured.
constexpr Row kRows[] = {
    {Collective::kAllReduce, true, 2, size_t{32} << 10},
    {Collective::kAllReduce, true, 3, size_t{16} << 10},
    {Collective::kAllReduce, true, 4, size_t{10} << 10},
    {Collective::kAllReduce, true, 5, size_t{8} << 10},
    {Collective::kAllReduce, true, 9, size_t{4} << 10},
    {Collective::kAllReduce, true, 17, size_t{2} << 10},
    {Collective::kAllReduce, false, 2, size_t{256} << 10},
    {Collective::kAllReduce, false, 4, size_t{64} << 10},
    {Collective::kBroadcast, false, 2, size_t{512} << 10},
};

}  // namespace

Algorithm Choose(Collective collective, size_t bytes, int members, bool mapped) {
  const Row* found = nullptr;
  for (const Row& row : kRows) {
    if (row.collective == collective && row.mapped == mapped && row.members <= members) {
      found = &row;
    }
  }
  return found != nullptr && bytes > found->bytes ? Algorithm::kTwoPhases : Algorithm::kRounds;
}

}  // namespace rdma_transport::collectives
