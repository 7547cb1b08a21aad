// Numbers from 1 on that arrive in any order.
#pragma once

#include <cstdint>
#include <set>

namespace rdma_transport {

// Thread-compatible.
class Arrivals {
 public:
  // Returns false if the number has arrived before.
  bool Add(uint64_t number) {
    if (number <= all_to_ || !ahead_.insert(number).second) return false;
    while (!ahead_.empty() && *ahead_.begin() == all_to_ + 1) {
      ++all_to_;
      ahead_.erase(ahead_.begin());
    }
    return true;
  }
  // Adds `count` numbers from `first` on.
  void Add(uint64_t first, uint64_t count) {
    if (first == all_to_ + 1 && ahead_.empty()) {
      all_to_ += count;
    } else {
      for (; count > 0; --count) Add(first++);
    }
  }
  // Returns the number up to which all have arrived.
  uint64_t AllTo() const { return all_to_; }

 private:
  uint64_t all_to_ = 0;
  std::set<uint64_t> ahead_;  // those that arrived before an earlier one
};

}  // namespace rdma_transport
