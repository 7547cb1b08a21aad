#include "analyzer/overlap.h"

#include <algorithm>
#include <bitset>
#include <utility>

namespace rdma_transport::analyzer {
namespace {

constexpr size_t kBits = 512;
using Bits = std::bitset<kBits>;

// Returns for each operation which of the operations `chosen` certainly run before it.
std::vector<Bits> Before(const std::vector<Operation>& operations, const uint32_t* chosen,
                         size_t count) {
  std::vector<Bits> through(operations.size());  // those before it, and itself
  std::vector<Bits> before(operations.size());
  for (size_t bit = 0; bit < count; ++bit) through[chosen[bit]].set(bit);
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& operation = operations[i];
    if (!operation.after_any.empty()) before[i].set();
    for (const uint32_t input : operation.after_any) before[i] &= through[input];
    for (const uint32_t input : operation.after) before[i] |= through[input];
    through[i] |= before[i];
  }
  return before;
}

}  // namespace

Overlap::Overlap(const std::vector<Operation>& operations, const std::vector<Lifetime>& lifetimes)
    : lifetimes_(lifetimes.size()), precedes_(lifetimes.size() * lifetimes.size(), false) {
  std::vector<std::pair<uint32_t, size_t>> ends;  // by operation
  for (size_t a = 0; a < lifetimes.size(); ++a) {
    if (lifetimes[a].always) continue;
    for (const uint32_t last : lifetimes[a].last) ends.emplace_back(last, a);
    for (size_t b = 0; b < lifetimes.size(); ++b) {
      precedes_[b * lifetimes_ + a] = !lifetimes[b].always && !lifetimes[a].last.empty();
    }
  }
  std::sort(ends.begin(), ends.end());
  for (auto end = ends.begin(); end != ends.end();) {
    std::vector<uint32_t> chosen;
    const auto begin = end;
    while (end != ends.end() && (chosen.size() < kBits || end->first == chosen.back())) {
      if (chosen.empty() || end->first != chosen.back()) chosen.push_back(end->first);
      ++end;
    }
    const std::vector<Bits> before = Before(operations, chosen.data(), chosen.size());
    for (size_t b = 0; b < lifetimes.size(); ++b) {
      if (lifetimes[b].always) continue;
      const Bits& over = before[lifetimes[b].first];
      size_t bit = 0;
      for (auto it = begin; it != end; ++it) {
        if (it->first != chosen[bit]) ++bit;
        if (!over[bit]) precedes_[b * lifetimes_ + it->second] = false;
      }
    }
  }
}

}  // namespace rdma_transport::analyzer
