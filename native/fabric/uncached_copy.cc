#include "fabric/uncached_copy.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace rdma_transport::fabric {
namespace {

constexpr uint64_t kUnknownCache = 32 << 20;  // if the system does not tell, as on some machines
constexpr uint64_t kMaxThreshold = 512 << 20;

uint64_t ArrayBytes() {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::min(2 * std::max(kUnknownCache, static_cast<uint64_t>(std::max(cache, 0L))),
                  kMaxThreshold);
}

}  // namespace

Status UncachedCopy::Allocate(uint64_t largest) try {
  const uint64_t bytes = std::max(ArrayBytes(), largest);
  source_.assign(bytes, 1);
  target_.assign(bytes, 2);
  return OkStatus();
} catch (const std::exception&) {  // bad_alloc, or length_error
  return Status(Code::kResourceExhausted, "no memory for arrays larger than the caches");
}

Status UncachedCopy::Run(uint64_t bytes, uint64_t times, Nanos* elapsed) {
  if (bytes == 0 || bytes > source_.size()) {
    return Status(Code::kInvalidArgument, "more than there is room for, or nothing");
  }
  const Nanos start = Now();
  for (uint64_t i = 0; i < times; ++i) {
    if (bytes > source_.size() - next_) next_ = 0;
    std::memcpy(target_.data() + next_, source_.data() + next_, bytes);
    asm volatile("" : : "r"(target_.data()) : "memory");  // keeps the compiler from removing it
    next_ += bytes;
  }
  *elapsed = Now() - start;
  return OkStatus();
}

}  // namespace rdma_transport::fabric
