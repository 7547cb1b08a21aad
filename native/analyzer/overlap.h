// Which buffers of a graph may be in use at the same time, by the order in which a step runs its
// operations. Uses no TensorFlow type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rdma_transport::analyzer {

// An operation runs after all operations in `after`, and after one of those in `after_any` unless
// that is empty. Operations are numbered in an order in which they can run: each of these numbers
// is smaller than the operation's own.
struct Operation {
  std::vector<uint32_t> after;
  std::vector<uint32_t> after_any;
};

// A buffer is in use from the start of operation `first` until all of `last` have run. If `always`
// is set, it is in use during the whole step.
struct Lifetime {
  uint32_t first = 0;
  std::vector<uint32_t> last;
  bool always = false;
};

// Immutable once constructed.
class Overlap {
 public:
  // Time: the product of the lifetimes and all their `last`, and for each 512 operations among the
  // `last`, one walk over the operations. Memory: 64 bytes per operation, one bit per pair of
  // lifetimes.
  Overlap(const std::vector<Operation>& operations, const std::vector<Lifetime>& lifetimes);

  // Returns false if one of the two is certainly over before the other one begins.
  bool operator()(size_t a, size_t b) const { return !Precedes(a, b) && !Precedes(b, a); }

 private:
  bool Precedes(size_t a, size_t b) const { return precedes_[b * lifetimes_ + a]; }

  const size_t lifetimes_;
  std::vector<bool> precedes_;
};

}  // namespace rdma_transport::analyzer
