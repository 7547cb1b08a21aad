// The buffers of reference variables. TensorFlow overwrites them in place even if they are shared,
// so a tensor that shares one must be copied when it is sent.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_set>

namespace rdma_transport {

// A set of addresses. Thread-safe.
class MutableBuffers {
 public:
  static MutableBuffers& Get() {
    static auto* buffers = new MutableBuffers;
    return *buffers;
  }

  void Add(const void* address) {
    std::lock_guard<std::mutex> lock(mu_);
    addresses_.insert(address);
    count_.store(addresses_.size(), std::memory_order_relaxed);
  }
  // Called when the memory is freed.
  void Forget(const void* address) {
    if (empty()) return;
    std::lock_guard<std::mutex> lock(mu_);
    addresses_.erase(address);
    count_.store(addresses_.size(), std::memory_order_relaxed);
  }
  bool empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  bool Contains(const void* address) {
    if (empty()) return false;
    std::lock_guard<std::mutex> lock(mu_);
    return addresses_.count(address) != 0;
  }

 private:
  std::atomic<size_t> count_{0};
  std::mutex mu_;
  std::unordered_set<const void*> addresses_;
};

}  // namespace rdma_transport
