// What is wrong with calls under a name, and how members tell each other.

#include <algorithm>
#include <cstring>

#include "collectives/named_execution.h"
#include "collectives/reduce.h"

namespace rdma_transport::collectives {
namespace {

constexpr size_t kTextBytes = 512;
constexpr size_t kMaxName = 200;

Status Wrong(const std::string& what) { return Status(Code::kInvalidArgument, what); }

std::string Quoted(const std::string& name) {
  return "'" + (name.size() > kMaxName ? name.substr(0, kMaxName) + "…" : name) + "'";
}

std::string ShapeOf(const NamedArray& array) {
  std::vector<uint64_t> shape = array.shape;
  if (shape.empty()) shape = {array.rows, array.row_length};
  std::string text;
  for (const uint64_t each : shape) text += (text.empty() ? "[" : ", ") + std::to_string(each);
  return text + "]";
}

// "all_reduce of float32 [3] (sum)"
std::string DescriptionOf(const NamedCall& call) {
  std::string text = NameOf(call.collective);
  if (call.collective == Collective::kBarrier) return text;
  text += std::string(" of ") + NameOf(call.dtype);
  for (const NamedArray& array : call.arrays) {
    text += (&array == call.arrays.data() ? " " : ", ") + ShapeOf(array);
  }
  if (call.collective == Collective::kBroadcast) {
    text += " from root " + std::to_string(call.root);
  }
  if (call.collective != Collective::kAllReduce && call.collective != Collective::kReduceScatter) {
    return text;
  }
  text += std::string(" (") + (call.average ? "average" : NameOf(call.op));
  if (call.prescale != 1.0) text += ", prescale " + std::to_string(call.prescale);
  if (call.postscale != 1.0) text += ", postscale " + std::to_string(call.postscale);
  return text + ")";
}

Status CheckSplits(const NamedCall& call, int size) {
  const auto members = static_cast<uint64_t>(size);
  const uint64_t rows = call.arrays[0].rows;
  if (call.splits.empty()) {
    if (rows % members == 0) return OkStatus();
    return Wrong("all_to_all: " + std::to_string(rows) + " rows cannot be divided evenly among " +
                 std::to_string(size) + " ranks; pass splits");
  }
  uint64_t total = 0;
  for (const uint64_t each : call.splits) {
    if (each > rows) return Wrong("all_to_all: a split has more rows than the array");
    total += each;
  }
  if (call.splits.size() != members || total != rows) {
    return Wrong("all_to_all: " + std::to_string(call.splits.size()) + " splits of " +
                 std::to_string(total) + " rows in all, for " + std::to_string(size) +
                 " ranks and an array of " + std::to_string(rows) + " rows");
  }
  return OkStatus();
}

}  // namespace

Status CheckCall(const NamedCall& call, int size) {
  if (call.joins) return OkStatus();
  const size_t arrays = call.arrays.size();
  switch (call.collective) {
    case Collective::kBarrier:
      return arrays == 0 ? OkStatus() : Wrong("a barrier has no arrays");
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
      if (call.average && (call.op != ReduceOp::kSum || call.dtype == DType::kBool)) {
        return Wrong("an average needs the operation sum, and numbers");
      }
      if (call.dtype == DType::kBool && (call.prescale != 1.0 || call.postscale != 1.0)) {
        return Wrong("bool has no factors: cast the array first");
      }
      RDMA_RETURN_IF_ERROR(CheckReduction(call.dtype, call.op));
      break;
    case Collective::kAllGather:
      break;
    case Collective::kBroadcast:
      if (call.root < 0 || call.root >= size) {
        return Wrong("there is no root " + std::to_string(call.root) + " among " +
                     std::to_string(size) + " ranks");
      }
      if (arrays != 1) return Wrong("a broadcast has one array");
      break;
    case Collective::kAllToAll:
      if (arrays != 1) return Wrong("an all_to_all has one array");
      RDMA_RETURN_IF_ERROR(CheckSplits(call, size));
      break;
    case Collective::kInvalid:
      return Wrong("its arguments are wrong");
    default:
      return Wrong(std::string(NameOf(call.collective)) + " is not matched by name");
  }
  const bool given = call.collective == Collective::kAllReduce ||
                     call.collective == Collective::kBroadcast || call.allocate != nullptr;
  return given ? OkStatus() : Wrong("nothing allocates the output");
}

std::string NamedExecution::NameOfRank(int rank) const {
  const auto place = static_cast<size_t>(rank);
  return "rank " + std::to_string(place < ranks_.size() ? ranks_[place] : rank);
}

Status NamedExecution::UsedTwice(int rank, const std::string& name) const {
  return Wrong(NameOfRank(rank) + " uses the name " + Quoted(name) +
               " twice at once: give each call a name of its own");
}

// Sets the work's status if the members' calls do not fit together: the same on all members.
Status NamedExecution::Judge(NamedWork* work, const Patience& patience) {
  const std::vector<NamedEntry>& entries = work->match.entries;
  const std::string name = work->calls.empty() ? "" : Quoted(work->calls[0].name);
  for (int rank = 0; rank < group_->size(); ++rank) {
    const NamedEntry& each = entries[static_cast<size_t>(rank)];
    if (each.has(NamedEntry::kTwice)) {
      work->status = UsedTwice(rank, work->calls.empty() ? std::string() : work->calls[0].name);
      return OkStatus();
    }
  }
  for (int rank = 0; rank < group_->size(); ++rank) {
    const NamedEntry& each = entries[static_cast<size_t>(rank)];
    if (each.flags == 0 && !Reduces(work->match.entry())) {
      work->status = Wrong(NameOfRank(rank) + " has joined, so it does not take part in " + name +
                           ": ranks that have joined take part in sums only");
      return OkStatus();
    }
    const auto op = static_cast<ReduceOp>(work->match.entry().op);
    if (each.flags == 0 && op != ReduceOp::kSum) {
      work->status = Wrong(NameOfRank(rank) + " has joined, and takes part in sums only, not in " +
                           name + " (" + NameOf(op) + ")");
      return OkStatus();
    }
    if (each.flags == 0) continue;
    if (each.has(NamedEntry::kInvalid) || !Fit(each, work->match.entry())) {
      return Explain(work, rank, patience);
    }
  }
  return OkStatus();
}

// The call of `rank` is wrong, or differs from the first one.
Status NamedExecution::Explain(NamedWork* work, int rank, const Patience& patience) {
  std::string own;
  if (!work->calls.empty()) {
    const Status valid = CheckCall(work->calls[0], group_->size());
    own = valid.ok() ? DescriptionOf(work->calls[0]) : valid.message();
  }
  own.resize(kTextBytes);
  std::vector<char> all;
  RDMA_RETURN_IF_ERROR(Share(own.data(), own.size(), &all, patience));
  const auto text = [&](int of) {
    const char* const begin = all.data() + static_cast<size_t>(of) * kTextBytes;
    return std::string(begin, strnlen(begin, kTextBytes));
  };
  const std::string name = work->calls.empty() ? "" : Quoted(work->calls[0].name);
  const int first = work->match.First();
  if (work->match.entries[static_cast<size_t>(rank)].has(NamedEntry::kInvalid)) {
    work->status = Wrong(name + " of " + NameOfRank(rank) + ": " + text(rank));
  } else {
    work->status = Wrong(NameOfRank(rank) + " calls " + text(rank) + " as " + name + ", and " +
                         NameOfRank(first) + " " + text(first) +
                         ": all ranks must call the same under a name");
  }
  return OkStatus();
}

}  // namespace rdma_transport::collectives
