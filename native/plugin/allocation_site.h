// The operation that allocates on a thread, as TensorFlow notes it for its memory profiler.
// TensorFlow 2.18 and 2.19 keep a C string, which may be null, and later versions a view.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace rdma_transport {

inline std::string_view ViewOf(const char* name) { return name == nullptr ? "" : name; }
inline std::string_view ViewOf(absl::string_view name) { return {name.data(), name.size()}; }

// Returns the name of the operation, or nothing outside of kernels. Valid while the kernel runs.
inline std::string_view AllocationSite() {
  return ViewOf(tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation().pending_op_name);
}

// Sets AllocationSite() on this thread.
class ScopedAllocationSite {
 public:
  // `name` must outlive this.
  explicit ScopedAllocationSite(const std::string& name) : annotation_(name.c_str()) {}

 private:
  const tsl::profiler::ScopedMemoryDebugAnnotation annotation_;
};

}  // namespace rdma_transport
