#include "collectives/named_execution.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "collectives/algorithm.h"
#include "collectives/shared_arena.h"

namespace rdma_transport::collectives {
namespace {

// Arrays up to this size are reduced together.
constexpr size_t kMaxSmall = size_t{64} << 10;
constexpr size_t kMaxPack = size_t{4} << 20;
constexpr size_t kMaxKept = size_t{4} << 20;
constexpr std::align_val_t kAlignment{64};

DType DTypeOf(const NamedWork& work) { return static_cast<DType>(work.match.entry().dtype); }
ReduceOp OpOf(const NamedWork& work) { return static_cast<ReduceOp>(work.match.entry().op); }

uint64_t CountOf(const NamedArray& array) { return array.rows * array.row_length; }
size_t BytesOf(const NamedWork& work, size_t array) {
  return CountOf(work.arrays[array]) * SizeOf(DTypeOf(work));
}

Scale Before(const NamedWork& work) {
  return {1, work.calls.empty() ? 1.0 : work.calls[0].prescale};
}

// Also on members that have joined, which scale a share for the others.
Scale After(const NamedWork& work, int size) {
  const NamedEntry& entry = work.match.entry();
  const bool average = entry.has(NamedEntry::kAverage);
  return {average ? static_cast<uint64_t>(size) : 1, entry.postscale};
}

Call ReductionOf(const NamedWork& work, uint64_t count, const char* input, char* output) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DTypeOf(work);
  call.op = OpOf(work);
  call.count = count;
  call.input = input;
  call.output = output;
  return call;
}

// Sets what a member contributes: zeros if it has joined.
void Contribute(const NamedWork& work, size_t array, char* to) {
  const NamedArray& own = work.arrays[array];
  if (own.input == nullptr) {
    std::memset(to, 0, BytesOf(work, array));
  } else {
    ScaleArray(DTypeOf(work), Before(work), own.input, to, CountOf(own));
  }
}

}  // namespace

char* Scratch::Get(size_t bytes) {
  if (bytes <= bytes_ && data_ != nullptr) return data_.get();
  bytes_ = std::max<size_t>(bytes, 64);
  data_.reset();
  char* data = bytes < kMinDirect ? nullptr : SharedArena::Get().Allocate(bytes_);
  if (data == nullptr) {
    data = static_cast<char*>(::operator new(bytes_, kAlignment, std::nothrow));
  }
  if (data == nullptr) {
    bytes_ = 0;
    return nullptr;
  }
  data_.reset(data, [](char* ended) {
    if (!SharedArena::Get().Free(ended)) ::operator delete(ended, kAlignment);
  });
  return data;
}

void Scratch::Trim() {
  if (bytes_ <= kMaxKept) return;
  data_.reset();
  bytes_ = 0;
}

Status NamedExecution::Run(std::vector<NamedWork>* works, const Patience& patience) {
  std::vector<NamedWork*> others;
  packs_.clear();
  for (NamedWork& work : *works) {
    RDMA_RETURN_IF_ERROR(Judge(&work, patience));
    const auto collective = static_cast<Collective>(work.match.entry().collective);
    if (!work.status.ok() || collective == Collective::kBarrier) {
      end_(&work);
      continue;
    }
    RDMA_RETURN_IF_ERROR(LearnSizes(&work, patience));
    work.left = work.arrays.size();
    bool small = collective == Collective::kAllReduce;
    for (size_t i = 0; i < work.arrays.size() && collective == Collective::kAllReduce; ++i) {
      if (BytesOf(work, i) <= kMaxSmall) {
        AddToPack(&work, i);
      } else {
        small = false;
      }
    }
    if (!small || work.arrays.empty()) others.push_back(&work);
  }
  for (const Pack& pack : packs_) RDMA_RETURN_IF_ERROR(RunPack(pack, patience));
  for (NamedWork* work : others) RDMA_RETURN_IF_ERROR(RunOne(work, patience));
  for (Scratch* scratch : {&packed_, &input_, &output_}) scratch->Trim();
  return OkStatus();
}

// A member that has joined knows the sizes of several arrays from one that has not.
Status NamedExecution::LearnSizes(NamedWork* work, const Patience& patience) {
  const NamedEntry& entry = work->match.entry();
  if (!work->calls.empty()) work->arrays = work->calls[0].arrays;
  if (entry.arrays == 1) {
    if (work->calls.empty()) work->arrays = {{nullptr, nullptr, entry.rows, 0, {}}};
    if (work->calls.empty() && entry.rows > 0) {
      work->arrays[0].row_length = entry.elements / entry.rows;
    }
    return OkStatus();
  }
  const auto& entries = work->match.entries;
  const bool any_joined = std::any_of(entries.begin(), entries.end(),
                                      [](const NamedEntry& each) { return each.flags == 0; });
  if (!any_joined || entry.arrays == 0) return OkStatus();
  std::vector<uint64_t> sizes(size_t{2} * entry.arrays);
  for (size_t i = 0; i < work->arrays.size(); ++i) {
    sizes[2 * i] = work->arrays[i].rows;
    sizes[2 * i + 1] = work->arrays[i].row_length;
  }
  Call call;
  call.collective = Collective::kBroadcast;
  call.root = work->match.First();
  call.count = sizes.size() * sizeof(uint64_t);
  call.output = reinterpret_cast<char*>(sizes.data());
  RDMA_RETURN_IF_ERROR(group_->Run(call, patience));
  if (!work->calls.empty()) return OkStatus();
  for (size_t i = 0; i < entry.arrays; ++i) {
    work->arrays.push_back({nullptr, nullptr, sizes[2 * i], sizes[2 * i + 1], {}});
  }
  return OkStatus();
}

void NamedExecution::AddToPack(NamedWork* work, size_t array) {
  const size_t bytes = BytesOf(*work, array);
  const auto fits = [&](const Pack& pack) {
    return pack.dtype == DTypeOf(*work) && pack.op == OpOf(*work) && pack.bytes + bytes <= kMaxPack;
  };
  auto pack = std::find_if(packs_.begin(), packs_.end(), fits);
  if (pack == packs_.end()) {
    packs_.push_back({DTypeOf(*work), OpOf(*work), 0, {}});
    pack = packs_.end() - 1;
  }
  pack->parts.push_back({work, array});
  pack->bytes += bytes;
}

Status NamedExecution::RunPack(const Pack& pack, const Patience& patience) {
  if (pack.parts.size() == 1) {
    return ReduceArray(pack.parts[0].work, pack.parts[0].array, patience);
  }
  char* data = nullptr;
  RDMA_RETURN_IF_ERROR(Memory(&packed_, pack.bytes, &data));
  size_t at = 0;
  for (const Part& part : pack.parts) {
    Contribute(*part.work, part.array, data + at);
    at += BytesOf(*part.work, part.array);
  }
  Call call = ReductionOf(*pack.parts[0].work, pack.bytes / SizeOf(pack.dtype), data, data);
  call.by_rank = true;
  call.keeper = packed_.keeper();
  if (pack.bytes > 0) RDMA_RETURN_IF_ERROR(group_->Run(call, patience));
  at = 0;
  for (const Part& part : pack.parts) {
    const NamedArray& own = part.work->arrays[part.array];
    if (own.output != nullptr) {
      ScaleArray(pack.dtype, After(*part.work, group_->size()), data + at, own.output,
                 CountOf(own));
    }
    at += BytesOf(*part.work, part.array);
    EndArray(part.work);
  }
  return OkStatus();
}

Status NamedExecution::ReduceArray(NamedWork* work, size_t array, const Patience& patience) {
  const NamedArray& own = work->arrays[array];
  const size_t bytes = BytesOf(*work, array);
  const uint64_t count = CountOf(own);
  const char* input = own.input;
  char* output = own.output;
  if (work->calls.empty()) RDMA_RETURN_IF_ERROR(Memory(&output_, bytes, &output));
  if (work->calls.empty() || !Before(*work).none()) {
    Contribute(*work, array, output);
    input = output;
  }
  Call call = ReductionOf(*work, count, input, output);
  call.by_rank = bytes <= kMaxSmall;
  call.after = After(*work, group_->size());
  call.keeper = work->calls.empty() ? output_.keeper() : work->calls[0].keeper;
  if (count > 0) RDMA_RETURN_IF_ERROR(group_->Run(call, patience));
  EndArray(work);
  return OkStatus();
}

void NamedExecution::EndArray(NamedWork* work) {
  if (--work->left == 0) end_(work);
}

Status NamedExecution::RunOne(NamedWork* work, const Patience& patience) {
  const auto collective = static_cast<Collective>(work->match.entry().collective);
  if (collective == Collective::kAllReduce && !work->arrays.empty()) {
    for (size_t i = 0; i < work->arrays.size(); ++i) {
      if (BytesOf(*work, i) > kMaxSmall) RDMA_RETURN_IF_ERROR(ReduceArray(work, i, patience));
    }
    return OkStatus();
  }
  switch (collective) {
    case Collective::kBroadcast:
      RDMA_RETURN_IF_ERROR(Broadcast(work, patience));
      break;
    case Collective::kAllGather:
      RDMA_RETURN_IF_ERROR(Gather(work, patience));
      break;
    case Collective::kReduceScatter:
      for (size_t i = 0; i < work->arrays.size(); ++i) {
        RDMA_RETURN_IF_ERROR(ReduceScatter(work, i, patience));
      }
      break;
    case Collective::kAllToAll:
      RDMA_RETURN_IF_ERROR(AllToAll(work, patience));
      break;
    default:
      break;
  }
  end_(work);
  return OkStatus();
}

Status NamedExecution::Memory(Scratch* scratch, size_t bytes, char** data) {
  *data = scratch->Get(bytes);
  if (*data != nullptr) return OkStatus();
  return Status(Code::kResourceExhausted,
                "there is no memory for " + std::to_string(bytes) + " bytes of a collective");
}

}  // namespace rdma_transport::collectives
