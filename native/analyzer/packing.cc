#include "analyzer/packing.h"

#include <algorithm>
#include <numeric>

#include "analyzer/plan.h"

namespace rdma_transport::analyzer {

std::vector<uint64_t> Pack(const std::vector<uint64_t>& sizes,
                           const std::function<bool(size_t, size_t)>& overlap) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&sizes](size_t a, size_t b) { return sizes[a] > sizes[b]; });
  std::vector<uint64_t> offsets(sizes.size());
  std::vector<size_t> placed;  // by offset
  for (const size_t buffer : order) {
    uint64_t end = 0;  // of the overlapping buffers so far
    uint64_t smallest = UINT64_MAX;
    uint64_t place = 0;
    for (const size_t other : placed) {
      if (!overlap(buffer, other)) continue;
      const uint64_t gap = offsets[other] - std::min(end, offsets[other]);
      if (gap >= sizes[buffer] && gap < smallest) {
        smallest = gap;
        place = end;
      }
      end = std::max(end, SaturatingAdd(offsets[other], sizes[other]));
    }
    offsets[buffer] = smallest == UINT64_MAX ? end : place;
    const auto after = std::upper_bound(
        placed.begin(), placed.end(), offsets[buffer],
        [&offsets](uint64_t offset, size_t other) { return offset < offsets[other]; });
    placed.insert(after, buffer);
  }
  return offsets;
}

}  // namespace rdma_transport::analyzer
