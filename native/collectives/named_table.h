// What members have announced of calls that are matched by name. All members announce in turns, so
// that each has the same table, and comes to the same conclusions.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "collectives/named_call.h"

namespace rdma_transport::collectives {

// Stands for a name. Different names have different keys, as good as certainly.
struct NamedKey {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const NamedKey& other) const { return high == other.high && low == other.low; }
};

struct NamedKeyHash {
  size_t operator()(const NamedKey& key) const { return static_cast<size_t>(key.low); }
};

NamedKey KeyOf(std::string_view name);

// What a member tells the others of a call. In the memory layout of the sender, which all members
// have in common.
struct NamedEntry {
  enum Flag : uint8_t {
    kStarted = 1,  // there is a call
    kAverage = 2,
    kJoins = 4,       // as NamedCall::joins; has no name
    kTwice = 8,       // started while this member's earlier one had not ended
    kWithdrawn = 16,  // the member does not wait any longer
    kInvalid = 32,    // the arguments are wrong
  };
  NamedKey name;
  uint64_t shapes = 0;  // a digest, of what must be equal
  double prescale = 1.0;
  double postscale = 1.0;
  uint64_t rows = 0;      // of the first array
  uint64_t elements = 0;  // of all arrays
  int32_t root = 0;
  uint32_t arrays = 0;
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t flags = 0;  // none: not announced
  uint32_t unused = 0;

  bool has(Flag flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(NamedEntry) == 72);

// `flags`: more of them.
NamedEntry EntryOf(const NamedCall& call, int flags);
// Whether two members' calls fit together.
bool Fit(const NamedEntry& a, const NamedEntry& b);
// Whether the collective combines elements.
bool Reduces(const NamedEntry& entry);

// A name under which members wait, or all have called.
struct NamedMatch {
  NamedKey name;
  uint64_t number = 0;              // in the order of the first announcements
  std::vector<NamedEntry> entries;  // by rank
  int withdrawn = -1;               // the rank that does not wait any longer

  // The lowest rank that has called.
  int First() const;
  const NamedEntry& entry() const { return entries[static_cast<size_t>(First())]; }
};

// Not thread-safe.
class NamedTable {
 public:
  explicit NamedTable(int size) : size_(size), joined_(static_cast<size_t>(size)) {}

  // Adds what a member has announced, in the order of ranks.
  void Add(int rank, const NamedEntry& entry);
  // Removes and returns the names that all have called who have not joined, and those that have
  // been withdrawn, in an order that is the same on all members.
  std::vector<NamedMatch> Take();
  // Returns whether all have joined, and if so, forgets it, and sets `last` to the last one.
  bool TakeJoin(int* last);

  // The ranks for which a name waits.
  std::vector<int> Missing(const NamedKey& name) const;
  std::vector<int> NotJoined() const;

 private:
  bool Complete(const NamedMatch& match) const;
  bool Ends(const NamedMatch& match) const;

  const int size_;
  std::vector<bool> joined_;
  int last_joined_ = -1;
  bool changed_joins_ = false;
  uint64_t names_ = 0;
  // A member's first call under a name is matched with the others' first, and so on.
  std::unordered_map<NamedKey, std::deque<NamedMatch>, NamedKeyHash> waiting_;
  std::vector<NamedKey> touched_;  // since the last Take()
};

}  // namespace rdma_transport::collectives
