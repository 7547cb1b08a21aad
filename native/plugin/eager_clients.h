// The eager contexts of this process's own program. What they receive is handed to Python.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace rdma_transport {

// A set of context IDs, which are also the step IDs of their eager operations. Thread-safe.
class EagerClients {
 public:
  static EagerClients& Get() {
    static auto* clients = new EagerClients;
    return *clients;
  }

  void Add(uint64_t context) {
    std::lock_guard<std::mutex> lock(mu_);
    contexts_.insert(context);
  }
  bool Contains(uint64_t context) {
    std::lock_guard<std::mutex> lock(mu_);
    return contexts_.count(context) != 0;
  }

 private:
  std::mutex mu_;
  std::unordered_set<uint64_t> contexts_;
};

}  // namespace rdma_transport
