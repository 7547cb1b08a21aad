#include "collectives/algorithm.h"

#include "collectives/board.h"

namespace rdma_transport::collectives {
namespace {

// Groups of this many members or more use the algorithm above `bytes`, unless a later row applies.
struct Row {
  Collective collective;
  Reach reach;
  int members;
  size_t bytes;
  Algorithm algorithm = Algorithm::kTwoPhases;
};

// Those between hosts were measured between two network namespaces with 1, 2 and 4 ranks each, over
// libfabric's TCP provider, at 1 and 4 Gbit/s and without a limit. Two levels gain most where the
// network is slow. `python -m bench.two_hosts --front-ends numpy --workers 8` measures two hosts.
constexpr Row kRows[] = {
    {Collective::kAllReduce, Reach::kAll, 2, size_t{32} << 10},
    {Collective::kAllReduce, Reach::kAll, 3, size_t{16} << 10},
    {Collective::kAllReduce, Reach::kAll, 4, size_t{10} << 10},
    {Collective::kAllReduce, Reach::kAll, 5, size_t{8} << 10},
    {Collective::kAllReduce, Reach::kAll, 9, size_t{4} << 10},
    {Collective::kAllReduce, Reach::kAll, 17, size_t{2} << 10},
    {Collective::kAllReduce, Reach::kSome, 2, size_t{256} << 10},
    {Collective::kAllReduce, Reach::kSome, 4, size_t{64} << 10},
    {Collective::kBroadcast, Reach::kSome, 2, size_t{512} << 10},
    {Collective::kAllReduce, Reach::kHost, 3, size_t{128} << 10, Algorithm::kTwoLevels},
    {Collective::kReduceScatter, Reach::kHost, 4, size_t{128} << 10, Algorithm::kTwoLevels},
    {Collective::kAllGather, Reach::kHost, 4, size_t{128} << 10, Algorithm::kTwoLevels},
    {Collective::kBroadcast, Reach::kHost, 3, size_t{256} << 10, Algorithm::kTwoLevels},
};

// Changes with the notifications, with the memory that members share, and with the order of steps.
constexpr int kVersion = 4;

}  // namespace

std::string Protocol() {
  std::string text = std::to_string(kVersion);
  const auto add = [&](uint64_t value) { text += " " + std::to_string(value); };
  add(kStageBytes);
  add(kMinDirect);
  add(kMaxInline);
  add(__BYTE_ORDER__);
  for (const Row& row : kRows) {
    add(static_cast<uint64_t>(row.collective));
    add(static_cast<uint64_t>(row.reach));
    add(static_cast<uint64_t>(row.members));
    add(row.bytes);
    add(static_cast<uint64_t>(row.algorithm));
  }
  return text;
}

Algorithm Choose(Collective collective, size_t bytes, int members, Reach reach) {
  Algorithm chosen = Algorithm::kRounds;
  // A reduction to one member takes the same steps.
  const Collective measured =
      collective == Collective::kReduce ? Collective::kAllReduce : collective;
  for (const Row& row : kRows) {
    const bool reaches = row.reach == reach || (row.reach == Reach::kSome && reach == Reach::kHost);
    if (row.collective == measured && reaches && row.members <= members && row.bytes < bytes) {
      chosen = row.algorithm;
    }
  }
  return chosen;
}

}  // namespace rdma_transport::collectives
