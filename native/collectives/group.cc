#include "collectives/group.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "collectives/reduce.h"
#include "collectives/round.h"

namespace rdma_transport::collectives {
namespace {

constexpr size_t kCachedBytes = size_t{16} << 10;

std::vector<const char*> MemoryOf(const Mesh& mesh) {
  std::vector<const char*> memory;
  for (int rank = 0; rank < mesh.size(); ++rank) memory.push_back(mesh.memory(rank));
  return memory;
}

std::vector<int> RemoteOf(const Mesh& mesh) {
  std::vector<int> remote;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (mesh.Remote(rank)) remote.push_back(rank);
  }
  return remote;
}

std::vector<const Board*> BoardsIn(const std::vector<const char*>& memory) {
  std::vector<const Board*> boards;
  for (const char* each : memory) boards.push_back(reinterpret_cast<const Board*>(each));
  return boards;
}

bool Reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}

// "all_reduce of 1000 float32 (sum)"
std::string TextOf(const Descriptor& descriptor) {
  const auto collective = static_cast<Collective>(descriptor.collective);
  std::string text = NameOf(collective);
  if (collective == Collective::kBarrier || collective >= Collective::kExchange) return text;
  text += " of " + std::to_string(descriptor.count) + " " +
          NameOf(static_cast<DType>(descriptor.dtype));
  if (Reduces(collective)) {
    text += std::string(" (") + NameOf(static_cast<ReduceOp>(descriptor.op)) + ")";
  }
  if (collective == Collective::kBroadcast || collective == Collective::kScatter) {
    text += " from rank " + std::to_string(descriptor.root);
  }
  if (collective == Collective::kGather || collective == Collective::kReduce) {
    text += " to rank " + std::to_string(descriptor.root);
  }
  return text;
}

bool Same(const Descriptor& a, const Descriptor& b) {
  const bool exchange = static_cast<Collective>(a.collective) == Collective::kExchange;
  return (a.count == b.count || exchange) && a.root == b.root && a.collective == b.collective &&
         a.dtype == b.dtype && a.op == b.op;
}

}  // namespace

Group::Group(std::unique_ptr<Mesh> mesh, Nanos spin)
    : mesh_(std::move(mesh)),
      memory_(MemoryOf(*mesh_)),
      remote_(RemoteOf(*mesh_)),
      progress_(mesh_->rank(), reinterpret_cast<Board*>(mesh_->own()), BoardsIn(memory_), spin,
                [this](int rank) { return mesh_->CheckLost(rank); }) {
  progress_.PollFor(remote_, mesh_->helper());
  offered_.resize(memory_.size());
  parts_.resize(memory_.size());
  sources_.resize(memory_.size());
  const auto lost = [this] {
    any_lost_.store(true);
    progress_.WakeAll();
  };
  mesh_->WhenLost(lost);
  for (int rank = 0; rank < size(); ++rank) {  // before that
    if (!mesh_->Lost(rank).ok()) lost();
  }
}

Group::~Group() { mesh_->WhenLost(nullptr); }

Status Group::Check(const Call& call) const {
  if (static_cast<size_t>(call.collective) > static_cast<size_t>(Collective::kInvalid) ||
      static_cast<int>(call.dtype) >= kDTypes ||
      static_cast<int>(call.op) > static_cast<int>(ReduceOp::kMax)) {
    return Status(Code::kInvalidArgument, "an unknown collective, type or operation");
  }
  if (call.root < 0 || call.root >= size()) {
    return Status(Code::kInvalidArgument, "there is no root " + std::to_string(call.root) +
                                              " in a group of " + std::to_string(size()));
  }
  const size_t limit = std::numeric_limits<size_t>::max() / 64 / static_cast<size_t>(size());
  if (call.count > limit) return Status(Code::kInvalidArgument, "the array is too large");
  if (call.collective == Collective::kExchange) {
    const size_t own = static_cast<size_t>(rank());
    if (call.pieces.size() != static_cast<size_t>(size()) ||
        call.pieces[own].sent != call.pieces[own].received) {
      return Status(Code::kInvalidArgument,
                    "an exchange needs a piece for each rank, and equal ones for this one");
    }
  }
  if (!Reduces(call.collective)) return OkStatus();
  return CheckReduction(call.dtype, call.op);
}

Descriptor Group::Describe(const Call& call) const {
  Descriptor descriptor;
  descriptor.count = call.count;
  descriptor.root = call.root;
  descriptor.collective = static_cast<uint8_t>(call.collective);
  descriptor.dtype = static_cast<uint8_t>(call.dtype);
  descriptor.op = static_cast<uint8_t>(call.op);
  for (const Parcel& piece : call.pieces) descriptor.count = std::max(descriptor.count, piece.sent);
  const size_t bytes = call.count * SizeOf(call.dtype);
  fabric::RemoteSpan input;
  if (CanBePlaced(call, &input)) {
    descriptor.flags |= Descriptor::kPlaced;
    descriptor.key = input.key;
    descriptor.output = input.offset;
    return descriptor;
  }
  if (reach_ != Reach::kAll || bytes < kMinDirect || !CanBeRead(call, &input)) return descriptor;
  if (call.collective == Collective::kAllReduce) {
    // The others read the result, too.
    fabric::RemoteSpan output;
    if (!mesh_->FindShared(call.output, bytes, &output) || input.key != output.key) {
      return descriptor;
    }
    descriptor.output = output.offset;
  }
  descriptor.flags |= Descriptor::kDirect;
  descriptor.key = input.key;
  descriptor.input = input.offset;
  return descriptor;
}

// Whether the others can read this member's array where it lies, until all have.
bool Group::CanBeRead(const Call& call, fabric::RemoteSpan* span) const {
  const size_t bytes = call.count * SizeOf(call.dtype);
  const size_t all = bytes * static_cast<size_t>(size());
  switch (call.collective) {
    case Collective::kBarrier:
    case Collective::kReduce:  // the others have no memory for what they combine
    case Collective::kExchange:
    case Collective::kInvalid:
      return false;
    case Collective::kBroadcast:
      return rank() == call.root && mesh_->FindShared(call.output, bytes, span);
    case Collective::kScatter:
      return rank() == call.root && mesh_->FindShared(call.input, all, span);
    case Collective::kGather:
      return rank() != call.root && mesh_->FindShared(call.input, bytes, span);
    case Collective::kAllReduce:
    case Collective::kAllGather:
      return mesh_->FindShared(call.input, bytes, span);
    case Collective::kReduceScatter:
      return mesh_->FindShared(call.input, all, span);
    case Collective::kAllToAll:  // in place, this member overwrites what the others read
      return call.input != call.output && mesh_->FindShared(call.input, all, span);
  }
  return false;
}

// Whether members of other hosts can write this member's result where it belongs.
bool Group::CanBePlaced(const Call& call, fabric::RemoteSpan* output) const {
  const size_t bytes = call.count * SizeOf(call.dtype);
  fabric::RemoteSpan input;
  return call.keeper != nullptr && call.collective == Collective::kAllReduce &&
         bytes >= kMinDirect && AlgorithmFor(call) == Algorithm::kTwoPhases &&
         remote_.size() + 1 == memory_.size() &&
         mesh_->FindShared(call.input, bytes, &input, /*placed=*/true) &&
         mesh_->FindShared(call.output, bytes, output, /*placed=*/true);
}

Status Group::Run(const Call& call, const Patience& patience) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!failed_.ok()) return failed_;
  const Status valid = Check(call);
  if (size() == 1) {
    if (valid.ok()) RunAlone(call);
    return valid;
  }
  // The other members must not wait for one whose arguments are invalid.
  Call invalid;
  invalid.collective = Collective::kInvalid;
  const Status status = Start(valid.ok() ? call : invalid, patience);
  if (status.ok() || status.code() == Code::kInvalidArgument) mesh_->KeepArrays(nullptr);
  if (!valid.ok() && (status.ok() || status.code() == Code::kInvalidArgument)) return valid;
  if (status.ok() || status.code() == Code::kInvalidArgument) return status;
  failed_ = status;
  // The others must be told why this one stops: they may not have lost the member that it has lost.
  mesh_->Close(status.message());
  return status;
}

void Group::WaitForStart(Nanos deadline, const std::function<bool()>& ready) {
  std::lock_guard<std::mutex> lock(mu_);
  progress_.WaitForStart(deadline, ready);
}

bool Group::Ahead() {
  std::lock_guard<std::mutex> lock(mu_);
  return progress_.Ahead();
}

void Group::RunAlone(const Call& call) {
  for (const Parcel& piece : call.pieces) {
    if (piece.sent > 0) std::memmove(piece.to, piece.from, piece.sent);
  }
  const size_t bytes = call.count * SizeOf(call.dtype);
  const bool copies =
      call.collective != Collective::kBroadcast && call.collective != Collective::kExchange &&
      call.collective != Collective::kBarrier && call.collective != Collective::kInvalid;
  if (copies && bytes > 0 && call.input != call.output) {
    std::memmove(call.output, call.input, bytes);
  }
  if (Reduces(call.collective)) {
    ScaleArray(call.dtype, call.after, call.output, call.output, call.count);
  }
}

void Group::Combine(const Call& call, const std::vector<const char*>& sources, size_t bytes,
                    char* out, char* copy) {
  if (call.after.none()) {
    return Reduce(call.dtype, call.op, sources, bytes / SizeOf(call.dtype), out, copy);
  }
  std::vector<const char*> from = sources;
  for (size_t at = 0; at < bytes; at += kCachedBytes) {  // which are scaled while in the cache
    const size_t length = std::min(kCachedBytes, bytes - at);
    const size_t count = length / SizeOf(call.dtype);
    for (size_t i = 0; i < from.size(); ++i) from[i] = sources[i] + at;
    Reduce(call.dtype, call.op, from, count, out + at, nullptr);
    ScaleArray(call.dtype, call.after, out + at, out + at, count);
    if (copy != nullptr) std::memcpy(copy + at, out + at, length);
  }
}

// Members may differ in whose memory they map, but must choose the same algorithms.
Status Group::Agree(const Patience& patience) {
  Descriptor own;
  own.flags = remote_.empty() ? 0 : Descriptor::kRemote;
  while (own.root < rank() && mesh_->Remote(own.root)) ++own.root;
  int parity = 0;
  RDMA_RETURN_IF_ERROR(Exchange(own, patience, &parity));
  std::vector<int> lowest;
  for (int rank = 0; rank < size(); ++rank) {
    const Descriptor other = board(rank).descriptors[parity];
    if ((other.flags & Descriptor::kRemote) != 0) reach_ = Reach::kSome;
    lowest.push_back(other.root);
  }
  if (reach_ != Reach::kAll) RDMA_RETURN_IF_ERROR(AgreeOnHosts(lowest, patience));
  agreed_ = true;
  return OkStatus();
}

// `lowest`: as for FindHosts(). Memory may be mapped by some members of a host, or in one
// direction.
Status Group::AgreeOnHosts(const std::vector<int>& lowest, const Patience& patience) {
  hosts_ = FindHosts(lowest, rank());
  bool all = hosts_.has_value();
  for (int rank = 0; rank < size(); ++rank) {
    all &= mesh_->Remote(rank) == (lowest[rank] != lowest[this->rank()]);
  }
  Descriptor own;
  own.flags = all ? Descriptor::kHosts : 0;
  int parity = 0;
  RDMA_RETURN_IF_ERROR(Exchange(own, patience, &parity));
  for (int rank = 0; rank < size(); ++rank) {
    all &= (board(rank).descriptors[parity].flags & Descriptor::kHosts) != 0;
  }
  if (all) reach_ = Reach::kHost;
  return OkStatus();
}

// Announces a step that has only a descriptor, as if it were a call.
Status Group::Exchange(const Descriptor& own, const Patience& patience, int* parity) {
  *parity = static_cast<int>(calls_++ % 2);
  RDMA_RETURN_IF_ERROR(Announce(patience, &own, *parity));
  return progress_.WaitForAll(patience);
}

Status Group::Start(const Call& call, const Patience& patience) {
  if (!agreed_) RDMA_RETURN_IF_ERROR(Agree(patience));
  const int parity = static_cast<int>(calls_++ % 2);
  const Descriptor own = Describe(call);
  constexpr uint8_t kInPlace = Descriptor::kDirect | Descriptor::kPlaced;
  const bool direct = (own.flags & kInPlace) != 0;
  if ((own.flags & Descriptor::kPlaced) != 0) mesh_->KeepArrays(call.keeper);
  // This stage was last used two calls ago, which all members have completed.
  const Algorithm algorithm = AlgorithmFor(call);
  const auto stage = [&] {
    if (algorithm == Algorithm::kTwoPhases) {
      return FillChunk(call, Chunk(call, 0), parity, patience);
    }
    if (algorithm == Algorithm::kTwoLevels) {
      return StartTwoLevels(call, parity, patience);
    }
    const size_t round = BytesOfRound(call);
    const bool exchange = call.collective == Collective::kExchange;  // its pieces end by themselves
    const size_t bytes = exchange ? round : call.count * SizeOf(call.dtype);
    return Stage(call, PartOf(bytes, round, 0), parity, patience);
  };
  if (!direct) RDMA_RETURN_IF_ERROR(stage());
  RDMA_RETURN_IF_ERROR(Announce(patience, &own, parity));
  RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience));
  RDMA_RETURN_IF_ERROR(Compare(parity));
  if (call.collective == Collective::kExchange) {
    RDMA_RETURN_IF_ERROR(RunRounds(call, LargestPiece(parity), parity, patience));
    return FindUneven(patience);
  }
  bool any_direct = false;
  bool all_direct = true;
  for (int rank = 0; rank < size(); ++rank) {
    if (FromRoot(call.collective) && rank != call.root) continue;
    if (call.collective == Collective::kGather && rank == call.root) continue;
    const bool its = (board(rank).descriptors[parity].flags & kInPlace) != 0;
    any_direct |= its;
    all_direct &= its;
  }
  if (all_direct && (own.flags & Descriptor::kPlaced) != 0) {
    return ReducePlaced(call, parity, patience);
  }
  if (all_direct) {
    return algorithm == Algorithm::kTwoPhases ? ReduceDirect(call, parity, patience)
                                              : ReadDirect(call, parity, patience);
  }
  if (any_direct) {  // some have not staged their array
    if (direct) RDMA_RETURN_IF_ERROR(stage());
    RDMA_RETURN_IF_ERROR(Announce(patience));
    RDMA_RETURN_IF_ERROR(progress_.WaitForAll(patience));
  }
  switch (algorithm) {
    case Algorithm::kRounds:
      return RunRounds(call, call.count * SizeOf(call.dtype), parity, patience);
    case Algorithm::kTwoPhases:
      return RunTwoPhases(call, parity, patience);
    case Algorithm::kTwoLevels:
      return RunTwoLevels(call, parity, patience);
  }
  return Status(Code::kInternal, "an unknown algorithm");
}

Algorithm Group::AlgorithmFor(const Call& call) const {
  const bool needs_equal =
      call.collective == Collective::kReduceScatter || call.collective == Collective::kAllGather;
  const bool flat = reach_ == Reach::kHost && ((needs_equal && !hosts_->equal()) || call.by_rank);
  return Choose(call.collective, call.count * SizeOf(call.dtype), size(),
                flat ? Reach::kSome : reach_);
}

Status Group::Announce(const Patience& patience, const Descriptor* descriptor, int parity) {
  if (descriptor != nullptr) {
    reinterpret_cast<Board*>(mesh_->own())->descriptors[parity] = *descriptor;
  }
  progress_.Advance();
  for (const int rank : remote_) {
    const Announcement announcement = {progress_.step(), std::exchange(offered_[rank], {}),
                                       descriptor, parity};
    RDMA_RETURN_IF_ERROR(mesh_->Announce(rank, announcement, patience));
  }
  return OkStatus();
}

void Group::Offer(int rank, const char* begin, size_t length) {
  offered_[rank] = {begin, length, 0, static_cast<uint64_t>(begin - memory_[this->rank()])};
}

Status Group::WaitToOverwrite(const char* begin, size_t bytes, const Patience& patience) const {
  if (remote_.empty() || bytes == 0) return OkStatus();
  const auto offset = static_cast<size_t>(begin - memory_[rank()]);
  for (size_t part = PartAt(offset); part <= PartAt(offset + bytes - 1); ++part) {
    RDMA_RETURN_IF_ERROR(mesh_->WaitWritten(part, patience));
  }
  return OkStatus();
}

Status Group::Compare(int parity) const {
  const Descriptor own = board(rank()).descriptors[parity];
  for (int rank = 0; rank < size(); ++rank) {
    const Descriptor other = board(rank).descriptors[parity];
    if (Same(own, other)) continue;
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + " called " +
                                              TextOf(other) + ", and this rank " + TextOf(own) +
                                              ": all ranks must call the same");
  }
  return OkStatus();
}

uint64_t Group::LargestPiece(int parity) const {
  uint64_t largest = 0;
  for (int rank = 0; rank < size(); ++rank) {
    largest = std::max(largest, board(rank).descriptors[parity].count);
  }
  return largest;
}

// Members may not know what the others send them, so they compare it at the end.
Status Group::FindUneven(const Patience& patience) {
  int parity = 0;
  RDMA_RETURN_IF_ERROR(Exchange(std::exchange(uneven_, {}), patience, &parity));
  for (int rank = 0; rank < size(); ++rank) {
    const Descriptor other = board(rank).descriptors[parity];
    if ((other.flags & Descriptor::kUneven) == 0) continue;
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + " expects " +
                                              std::to_string(other.output) + " bytes of rank " +
                                              std::to_string(other.root) + ", which sends " +
                                              std::to_string(other.input));
  }
  return OkStatus();
}

}  // namespace rdma_transport::collectives
