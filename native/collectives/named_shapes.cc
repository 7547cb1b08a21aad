// Collectives that are matched by name and whose members may have different shapes.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "collectives/named_execution.h"
#include "collectives/round.h"

namespace rdma_transport::collectives {
namespace {

// The rows of the result that a member gets: of so many, the first ones get one more.
Round RowsOf(uint64_t rows, int size, int rank) {
  const auto members = static_cast<uint64_t>(size);
  const auto place = static_cast<uint64_t>(rank);
  const uint64_t more = rows % members;
  return {0, place * (rows / members) + std::min(place, more), rows / members + (place < more)};
}

}  // namespace

// Each member gets what all others have.
Status NamedExecution::Share(const void* own, size_t bytes, std::vector<char>* all,
                             const Patience& patience) {
  all->resize(bytes * static_cast<size_t>(group_->size()));
  Call call;
  call.collective = Collective::kAllGather;
  call.count = bytes;
  call.input = static_cast<const char*>(own);
  call.output = all->data();
  return group_->Run(call, patience);
}

// Sets where the output of an array goes. If the caller has no memory, its call fails, and the
// others go on.
Status NamedExecution::Output(NamedWork* work, size_t array, uint64_t rows, char** output) {
  if (!work->calls.empty()) *output = work->calls[0].allocate(array, rows);
  if (*output != nullptr) return OkStatus();
  const NamedArray& own = work->arrays[array];
  const uint64_t bytes =
      rows * own.row_length * SizeOf(static_cast<DType>(work->match.entry().dtype));
  if (!work->calls.empty()) {
    work->status =
        Status(Code::kResourceExhausted, "there is no memory for the " + std::to_string(bytes) +
                                             " bytes of '" + work->calls[0].name + "'");
  }
  return Memory(&output_, bytes, output);
}

Status NamedExecution::Broadcast(NamedWork* work, const Patience& patience) {
  const NamedArray& own = work->arrays[0];
  Call call;
  call.collective = Collective::kBroadcast;
  call.dtype = static_cast<DType>(work->match.entry().dtype);
  call.root = work->match.entry().root;
  call.count = own.rows * own.row_length;
  call.output = own.output;
  const size_t bytes = call.count * SizeOf(call.dtype);
  if (bytes == 0) return OkStatus();
  if (group_->rank() == call.root && own.input != own.output) {
    std::memcpy(own.output, own.input, bytes);
  }
  return group_->Run(call, patience);
}

Status NamedExecution::Gather(NamedWork* work, const Patience& patience) {
  const auto size = static_cast<size_t>(group_->size());
  const size_t arrays = work->arrays.size();
  std::vector<uint64_t> rows(arrays);
  for (size_t i = 0; i < arrays; ++i) rows[i] = work->arrays[i].rows;
  std::vector<uint64_t> all(arrays * size);
  if (arrays > 1) {
    std::vector<char> shared;
    RDMA_RETURN_IF_ERROR(Share(rows.data(), arrays * sizeof(uint64_t), &shared, patience));
    std::memcpy(all.data(), shared.data(), shared.size());
  } else {
    for (size_t rank = 0; rank < size && arrays > 0; ++rank) {
      all[rank] = work->match.entries[rank].rows;
    }
  }
  for (size_t rank = 0; rank < size && arrays > 0; ++rank) {
    work->result.rows.push_back(all[rank * arrays]);
  }
  for (size_t i = 0; i < arrays; ++i) {
    RDMA_RETURN_IF_ERROR(GatherArray(work, i, all.data() + i, arrays, patience));
  }
  return OkStatus();
}

// `rows`: of each rank, at this distance.
Status NamedExecution::GatherArray(NamedWork* work, size_t array, const uint64_t* rows,
                                   size_t stride, const Patience& patience) {
  const NamedArray& own = work->arrays[array];
  const auto size = static_cast<size_t>(group_->size());
  const auto dtype = static_cast<DType>(work->match.entry().dtype);
  const uint64_t row = own.row_length * SizeOf(dtype);
  uint64_t total = 0;
  bool equal = true;
  for (size_t rank = 0; rank < size; ++rank) {
    total += rows[rank * stride];
    equal &= rows[rank * stride] == rows[0];
  }
  char* output = nullptr;
  RDMA_RETURN_IF_ERROR(Output(work, array, total, &output));
  if (total * row == 0) return OkStatus();
  Call call;
  call.dtype = dtype;
  if (equal) {
    call.collective = Collective::kAllGather;
    call.count = own.rows * own.row_length;
    call.input = own.input;
    call.output = output;
    return group_->Run(call, patience);
  }
  call.collective = Collective::kExchange;
  for (size_t rank = 0; rank < size; ++rank) {
    const uint64_t received = rows[rank * stride] * row;
    call.pieces.push_back({own.input, output, own.rows * row, received});
    output += received;
  }
  return group_->Run(call, patience);
}

Status NamedExecution::ReduceScatter(NamedWork* work, size_t array, const Patience& patience) {
  const NamedArray& own = work->arrays[array];
  const NamedEntry& entry = work->match.entry();
  const Round part = RowsOf(own.rows, group_->size(), group_->rank());
  const auto dtype = static_cast<DType>(entry.dtype);
  const uint64_t row = own.row_length * SizeOf(dtype);
  char* output = nullptr;
  RDMA_RETURN_IF_ERROR(Output(work, array, part.length, &output));
  if (own.rows * row == 0) return OkStatus();
  const bool even = own.rows % static_cast<uint64_t>(group_->size()) == 0;
  Call call;
  call.collective = even ? Collective::kReduceScatter : Collective::kAllReduce;
  call.dtype = dtype;
  call.op = static_cast<ReduceOp>(entry.op);
  call.count = (even ? part.length : own.rows) * own.row_length;
  call.input = own.input;
  call.output = output;
  const NamedCall* const its = work->calls.empty() ? nullptr : work->calls.data();
  if (its == nullptr || its->prescale != 1.0 || !even) {
    char* copy = nullptr;
    RDMA_RETURN_IF_ERROR(Memory(&input_, own.rows * row, &copy));
    if (its == nullptr) {
      std::memset(copy, 0, own.rows * row);
    } else {
      ScaleArray(dtype, {1, its->prescale}, own.input, copy, own.rows * own.row_length);
    }
    call.input = copy;
    if (!even) call.output = copy;
  }
  call.after = {entry.has(NamedEntry::kAverage) ? static_cast<uint64_t>(group_->size()) : 1,
                entry.postscale};
  RDMA_RETURN_IF_ERROR(group_->Run(call, patience));
  if (!even) std::memcpy(output, call.output + part.begin * row, part.length * row);
  return OkStatus();
}

Status NamedExecution::AllToAll(NamedWork* work, const Patience& patience) {
  const NamedArray& own = work->arrays[0];
  const auto size = static_cast<size_t>(group_->size());
  const std::vector<uint64_t>& splits = work->calls[0].splits;
  const uint64_t row = own.row_length * SizeOf(static_cast<DType>(work->match.entry().dtype));
  std::vector<uint64_t> sent(size, own.rows / size);
  if (!splits.empty()) sent = splits;
  std::vector<char> shared;
  RDMA_RETURN_IF_ERROR(Share(sent.data(), size * sizeof(uint64_t), &shared, patience));
  std::vector<uint64_t> all(size * size);
  std::memcpy(all.data(), shared.data(), shared.size());
  const auto me = static_cast<size_t>(group_->rank());
  for (size_t rank = 0; rank < size; ++rank) {
    work->result.rows.push_back(all[rank * size + me]);
  }
  const auto& received = work->result.rows;
  char* output = nullptr;
  RDMA_RETURN_IF_ERROR(
      Output(work, 0, std::accumulate(received.begin(), received.end(), uint64_t{0}), &output));
  if (std::accumulate(all.begin(), all.end(), uint64_t{0}) * row == 0) return OkStatus();
  Call call;
  call.collective = Collective::kExchange;
  const char* input = own.input;
  for (size_t rank = 0; rank < size; ++rank) {
    call.pieces.push_back({input, output, sent[rank] * row, received[rank] * row});
    input += sent[rank] * row;
    output += received[rank] * row;
  }
  return group_->Run(call, patience);
}

}  // namespace rdma_transport::collectives
