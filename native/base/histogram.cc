#include "base/histogram.h"

#include "base/json.h"

namespace rdma_transport {
namespace {

// Exact, and independent of the locale.
std::string Seconds(uint64_t nanos) {
  constexpr uint64_t kSecondNanos = kSecond;
  std::string fraction = std::to_string(kSecondNanos + nanos % kSecondNanos).substr(1);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  return std::to_string(nanos / kSecondNanos) + (fraction.empty() ? "" : "." + fraction);
}

}  // namespace

std::string Histogram::Counts::ToJson() const {
  Json cumulative('{');
  uint64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    count += buckets[i];
    cumulative.Count(Seconds(kBounds[i]), count);
  }
  count += buckets.back();
  cumulative.Count("+Inf", count);
  return Json('{')
      .Field("buckets", cumulative.End())
      .Count("count", count)
      .Field("sum", Seconds(sum))
      .End();
}

}  // namespace rdma_transport
