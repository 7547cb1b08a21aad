#include "collectives/named_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rdma_transport::collectives {
namespace {

uint64_t Mix(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ value >> 33;
}

uint64_t Digest(uint64_t digest, uint64_t value) { return Mix(digest ^ Mix(value + 1)) + value; }

}  // namespace

NamedKey KeyOf(std::string_view name) {
  uint64_t a = 0x9e3779b97f4a7c15ULL ^ name.size();
  uint64_t b = 0xc2b2ae3d27d4eb4fULL;
  for (size_t i = 0; i < name.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, name.data() + i, std::min(sizeof(word), name.size() - i));
    a = Mix(a ^ word) * 0x9fb21c651e98df25ULL;
    b = Mix(b + word) ^ (a >> 7);
  }
  return {Mix(a), Mix(b)};
}

bool Reduces(const NamedEntry& entry) {
  const auto collective = static_cast<Collective>(entry.collective);
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
}

NamedEntry EntryOf(const NamedCall& call, int flags) {
  NamedEntry entry;
  entry.collective = static_cast<uint8_t>(call.collective);
  entry.flags =
      static_cast<uint8_t>(flags | (call.joins ? NamedEntry::kJoins : 0) | NamedEntry::kStarted);
  if (call.joins) return entry;
  entry.name = KeyOf(call.name);
  entry.arrays = static_cast<uint32_t>(call.arrays.size());
  if (call.collective == Collective::kBarrier) return entry;
  entry.dtype = static_cast<uint8_t>(call.dtype);
  const bool rows_differ =
      call.collective == Collective::kAllGather || call.collective == Collective::kAllToAll;
  for (const NamedArray& array : call.arrays) {
    entry.elements += array.rows * array.row_length;
    entry.shapes = Digest(entry.shapes, array.shape.size());
    entry.shapes = Digest(entry.shapes, array.row_length);
    if (!rows_differ) entry.shapes = Digest(entry.shapes, array.rows);
    for (size_t i = 1; i < array.shape.size(); ++i) {
      entry.shapes = Digest(entry.shapes, array.shape[i]);
    }
  }
  if (!call.arrays.empty()) entry.rows = call.arrays[0].rows;
  if (call.collective == Collective::kBroadcast) entry.root = call.root;
  if (!Reduces(entry)) return entry;
  entry.op = static_cast<uint8_t>(call.op);
  entry.prescale = call.prescale;
  entry.postscale = call.postscale;
  if (call.average) entry.flags |= NamedEntry::kAverage;
  return entry;
}

bool Fit(const NamedEntry& a, const NamedEntry& b) {
  return a.shapes == b.shapes && a.prescale == b.prescale && a.postscale == b.postscale &&
         a.root == b.root && a.arrays == b.arrays && a.collective == b.collective &&
         a.dtype == b.dtype && a.op == b.op &&
         a.has(NamedEntry::kAverage) == b.has(NamedEntry::kAverage);
}

int NamedMatch::First() const {
  size_t rank = 0;
  while (rank + 1 < entries.size() && entries[rank].flags == 0) ++rank;
  return static_cast<int>(rank);
}

void NamedTable::Add(int rank, const NamedEntry& entry) {
  const auto place = static_cast<size_t>(rank);
  if (entry.has(NamedEntry::kJoins)) {
    if (joined_[place]) return;
    joined_[place] = true;
    changed_joins_ = true;
    last_joined_ = rank;
    return;
  }
  if (entry.has(NamedEntry::kWithdrawn)) {  // unless it has ended meanwhile
    const auto found = waiting_.find(entry.name);
    if (found == waiting_.end() || found->second.front().entries[place].flags == 0) return;
    if (found->second.front().withdrawn < 0) found->second.front().withdrawn = rank;
    touched_.push_back(entry.name);
    return;
  }
  std::deque<NamedMatch>& matches = waiting_[entry.name];
  auto match = std::find_if(matches.begin(), matches.end(), [place](const NamedMatch& each) {
    return each.entries[place].flags == 0;
  });
  if (match == matches.end()) {
    match = matches.insert(match, NamedMatch());
    match->name = entry.name;
    match->number = names_++;
    match->entries.resize(static_cast<size_t>(size_));
  }
  match->entries[place] = entry;
  touched_.push_back(entry.name);
}

bool NamedTable::Complete(const NamedMatch& match) const {
  for (size_t rank = 0; rank < joined_.size(); ++rank) {
    if (match.entries[rank].flags == 0 && !joined_[rank]) return false;
  }
  return true;
}

bool NamedTable::Ends(const NamedMatch& match) const {
  return match.withdrawn >= 0 || Complete(match);
}

std::vector<NamedMatch> NamedTable::Take() {
  if (std::exchange(changed_joins_, false)) {
    touched_.clear();
    for (const auto& [name, matches] : waiting_) touched_.push_back(name);
    std::sort(touched_.begin(), touched_.end(), [&](const NamedKey& a, const NamedKey& b) {
      return waiting_.at(a).front().number < waiting_.at(b).front().number;
    });
  }
  std::vector<NamedMatch> taken;
  for (const NamedKey& name : touched_) {
    const auto found = waiting_.find(name);
    if (found == waiting_.end()) continue;
    std::deque<NamedMatch>& matches = found->second;
    while (!matches.empty() && Ends(matches.front())) {
      if (Complete(matches.front())) matches.front().withdrawn = -1;
      taken.push_back(std::move(matches.front()));
      matches.pop_front();
    }
    if (matches.empty()) waiting_.erase(found);
  }
  touched_.clear();
  return taken;
}

bool NamedTable::TakeJoin(int* last) {
  if (!NotJoined().empty()) return false;
  joined_.assign(joined_.size(), false);
  *last = last_joined_;
  return true;
}

std::vector<int> NamedTable::Missing(const NamedKey& name) const {
  std::vector<int> missing;
  const auto found = waiting_.find(name);
  for (size_t rank = 0; rank < joined_.size(); ++rank) {
    const bool here = found != waiting_.end() && found->second.front().entries[rank].flags != 0;
    if (!here && !joined_[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

std::vector<int> NamedTable::NotJoined() const {
  std::vector<int> others;
  for (size_t rank = 0; rank < joined_.size(); ++rank) {
    if (!joined_[rank]) others.push_back(static_cast<int>(rank));
  }
  return others;
}

}  // namespace rdma_transport::collectives
