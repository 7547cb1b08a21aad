#include "embeddings/reader.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/spin.h"

namespace rdma_transport::embeddings {
namespace {

using collectives::Patience;

// Rows whose memory is fetched ahead of their turn.
constexpr size_t kAhead = 16;
// Of one chunk of remote rows, two of which are under way.
constexpr size_t kStagingBytes = size_t{1} << 20;
constexpr size_t kMaxReads = 1024;
constexpr size_t kMaxStaging = 4;  // kept for later lookups
// An owner stores a row in less than a microsecond, unless it is not running.
constexpr int kSpins = 1000;
constexpr Nanos kTornTimeout = 30 * kSecond;
constexpr Nanos kRetryInterval = kMillisecond;

void FetchRow(const char* row, size_t stride) {
  for (size_t at = 0; at < std::min<size_t>(stride, 256); at += 64) __builtin_prefetch(row + at);
}

}  // namespace

// Memory that remote rows are read into.
struct Reader::Staging {
  std::shared_ptr<fabric::Device> device;  // must outlive the region
  std::unique_ptr<fabric::Region> region;
};

// A remote row, and the place of the output to which it goes.
struct Reader::Wanted {
  uint64_t owner = 0;
  uint64_t row = 0;  // in the owner's shard
  uint32_t place = 0;
};

// Rows that are read together.
struct Reader::Chunk {
  size_t begin = 0;
  size_t end = 0;  // none: equal
  std::shared_ptr<Staging> staging;
  std::vector<std::pair<int, std::shared_ptr<collectives::RemoteReads>>> reads;  // by owner
};

Status Reader::Explained(const Status& status, int owner) const {
  return Status(status.code(), "table '" + name_ + "' cannot be read from its owner, rank " +
                                   std::to_string(owner) + ": " + status.message());
}

Status Reader::Attach(const Shard& own, const std::vector<uint64_t>& keys,
                      const Patience& patience) {
  keys_ = keys;
  shards_.resize(keys.size());
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    const int owner = static_cast<int>(rank);
    const uint64_t bytes = layout_.RowsOf(rank) * layout_.stride();
    if (owner == mesh_->rank()) {
      shards_[rank].data = own.data();
    } else if (bytes == 0) {
      shards_[rank].data = own.data();  // no row of it is read
    } else if (!mesh_->Remote(owner)) {
      const Status mapped = mesh_->Map(owner, {keys[rank], 0, bytes}, patience, &shards_[rank]);
      if (!mapped.ok()) return Explained(mapped, owner);
    } else {
      all_mapped_ = false;
    }
  }
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    if (shards_[rank].data != nullptr) continue;
    std::vector<char> first(layout_.row_bytes());
    while (true) {  // until its share has arrived
      const Status read = ReadRemote({rank}, {0}, first.data(), patience);
      if (read.ok()) break;
      if (read.code() != Code::kInvalidArgument || Now() > patience.deadline) return read;
      if (patience.interrupted != nullptr && patience.interrupted()) {
        return Status(Code::kCancelled, "interrupted");
      }
      std::this_thread::sleep_for(std::chrono::nanoseconds(kRetryInterval));
    }
  }
  return OkStatus();
}

Status Reader::Read(const std::vector<uint64_t>& rows, char* out, const Patience& patience) const {
  const size_t bytes = layout_.row_bytes();
  const size_t stride = layout_.stride();
  const auto place_of = [&](uint64_t row) {
    const char* const shard = shards_[row % layout_.ranks].data;
    return shard == nullptr ? nullptr : shard + row / layout_.ranks * stride;
  };
  std::vector<uint32_t> remote;
  const char* ahead[kAhead] = {};
  for (size_t i = 0; i < rows.size() + kAhead; ++i) {
    const char* const now = ahead[i % kAhead];
    if (i < rows.size()) {
      ahead[i % kAhead] = place_of(rows[i]);
      if (ahead[i % kAhead] != nullptr) FetchRow(ahead[i % kAhead], stride);
    }
    if (i < kAhead) continue;
    const size_t turn = i - kAhead;
    if (now == nullptr) {
      remote.push_back(static_cast<uint32_t>(turn));
    } else if (!LoadRow(now, rows[turn], out + turn * bytes, bytes)) {
      RDMA_RETURN_IF_ERROR(ReadMapped(rows[turn], out + turn * bytes, patience));
    }
  }
  if (!remote.empty()) RDMA_RETURN_IF_ERROR(ReadRemote(rows, remote, out, patience));
  // The memory of a dead rank can still be read, but no one updates it.
  for (int owner = 0; owner < mesh_->size() && !rows.empty(); ++owner) {
    const Status lost = mesh_->Lost(owner);
    if (!lost.ok()) return Explained(lost, owner);
  }
  return OkStatus();
}

// A row that was being stored.
Status Reader::ReadMapped(uint64_t row, char* out, const Patience& patience) const {
  const int owner = static_cast<int>(row % layout_.ranks);
  const char* const place = shards_[owner].data + row / layout_.ranks * layout_.stride();
  const Nanos start = Now();
  for (int spins = 0; !LoadRow(place, row, out, layout_.row_bytes()); ++spins) {
    if (spins < kSpins) {
      Pause();
      continue;
    }
    const Status lost = mesh_->Lost(owner);
    if (!lost.ok()) return Explained(lost, owner);
    if (Now() - start > kTornTimeout || Now() > patience.deadline) {
      return Explained(Status(Code::kDeadlineExceeded,
                              "row " + std::to_string(row) + " was being stored all the time"),
                       owner);
    }
    SpinBriefly();
  }
  return OkStatus();
}

Status Reader::ReadRemote(const std::vector<uint64_t>& rows, const std::vector<uint32_t>& places,
                          char* out, const Patience& patience) const {
  std::vector<uint64_t> asked;
  for (const uint32_t place : places) asked.push_back(rows[place]);
  const Grouped grouped = GroupByOwner(asked, static_cast<int>(layout_.ranks));
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < grouped.rows.size(); ++i) {
    const uint64_t row = grouped.rows[i];
    wanted.push_back({row % layout_.ranks, row / layout_.ranks, places[grouped.first[i]]});
  }
  const auto earlier = [](const Wanted& one, const Wanted& other) {
    return std::pair(one.owner, one.row) < std::pair(other.owner, other.row);
  };
  std::sort(wanted.begin(), wanted.end(), earlier);
  const Nanos start = Now();
  while (!wanted.empty()) {
    std::vector<Wanted> torn;
    Chunk chunks[2];
    size_t number = 0;
    for (size_t begin = 0; begin < wanted.size(); begin = chunks[number++ % 2].end) {
      Chunk* const chunk = &chunks[number % 2];
      RDMA_RETURN_IF_ERROR(Finish(wanted, chunk, out, &torn, patience));
      RDMA_RETURN_IF_ERROR(Start(wanted, begin, chunk));
    }
    for (Chunk& chunk : chunks) RDMA_RETURN_IF_ERROR(Finish(wanted, &chunk, out, &torn, patience));
    wanted.swap(torn);
    if (!wanted.empty() && Now() - start > kTornTimeout) {
      return Explained(Status(Code::kDeadlineExceeded, "rows were being stored all the time"),
                       static_cast<int>(wanted[0].owner));
    }
  }
  const size_t bytes = layout_.row_bytes();
  for (size_t i = 0; i < places.size(); ++i) {
    const uint32_t first = places[grouped.first[grouped.place[i]]];
    if (first != places[i]) std::memcpy(out + places[i] * bytes, out + first * bytes, bytes);
  }
  return OkStatus();
}

Status Reader::TakeStaging(std::shared_ptr<Staging>* staging) const {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!free_.empty()) {
      *staging = std::move(free_.back());
      free_.pop_back();
      return OkStatus();
    }
  }
  auto made = std::make_shared<Staging>();
  made->device = mesh_->device();
  const size_t granule = made->device->RegionGranule();
  const size_t bytes = std::max(kStagingBytes, layout_.stride());
  RDMA_RETURN_IF_ERROR(made->device->Allocate((bytes + granule - 1) / granule * granule,
                                              fabric::Access::kRemoteRead, nullptr, &made->region));
  *staging = std::move(made);
  return OkStatus();
}

// Starts to read as many rows as fit. Those that lie one after the other are one read.
Status Reader::Start(const std::vector<Wanted>& wanted, size_t begin, Chunk* chunk) const {
  RDMA_RETURN_IF_ERROR(TakeStaging(&chunk->staging));
  const size_t stride = layout_.stride();
  const size_t room = chunk->staging->region->length() / stride;
  char* const memory = chunk->staging->region->address();
  chunk->begin = chunk->end = begin;
  size_t started = 0;
  while (chunk->end < wanted.size() && chunk->end - begin < room && started < kMaxReads) {
    const Wanted& first = wanted[chunk->end];
    size_t count = 1;
    const auto next = [&] { return chunk->end + count; };
    while (next() < wanted.size() && next() - begin < room && wanted[next()].owner == first.owner &&
           wanted[next()].row == first.row + count) {
      ++count;
    }
    const int owner = static_cast<int>(first.owner);
    if (chunk->reads.empty() || chunk->reads.back().first != owner) {
      auto made = std::make_shared<collectives::RemoteReads>();
      made->target = chunk->staging;
      chunk->reads.emplace_back(owner, std::move(made));
    }
    const fabric::RemoteSpan span = {keys_[owner], first.row * stride, count * stride};
    char* const to = memory + (chunk->end - begin) * stride;
    const Status status = mesh_->Read(owner, span, to, chunk->reads.back().second);
    if (!status.ok()) return Explained(status, owner);
    chunk->end += count;
    ++started;
  }
  return OkStatus();
}

Status Reader::Finish(const std::vector<Wanted>& wanted, Chunk* chunk, char* out,
                      std::vector<Wanted>* torn, const Patience& patience) const {
  for (const auto& [owner, reads] : chunk->reads) {
    const Status status = mesh_->WaitRead(*reads, patience);
    if (!status.ok()) return Explained(status, owner);
  }
  const size_t bytes = layout_.row_bytes();
  for (size_t i = chunk->begin; i < chunk->end; ++i) {
    const Wanted& each = wanted[i];
    const char* const arrived =
        chunk->staging->region->address() + (i - chunk->begin) * layout_.stride();
    const uint64_t row = each.row * layout_.ranks + each.owner;
    if (!LoadRow(arrived, row, out + each.place * bytes, bytes)) torn->push_back(each);
  }
  if (chunk->staging != nullptr) {
    std::lock_guard<std::mutex> lock(mu_);
    if (free_.size() < kMaxStaging) free_.push_back(std::move(chunk->staging));
  }
  *chunk = Chunk();
  return OkStatus();
}

}  // namespace rdma_transport::embeddings
