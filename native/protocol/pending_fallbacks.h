// The tensors handed to gRPC for a peer and not fetched yet. A link that comes up later notifies
// the peer to fetch them.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rdma_transport {

// Thread-safe.
class PendingFallbacks {
 public:
  void Add(const std::string& task, int64_t step, std::string_view key) {
    std::lock_guard<std::mutex> lock(mu_);
    steps_[step].emplace(key, task);
  }
  void Fetched(int64_t step, std::string_view key) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = steps_.find(step);
    if (found == steps_.end()) return;
    const auto entry = found->second.find(key);
    if (entry != found->second.end()) found->second.erase(entry);
    if (found->second.empty()) steps_.erase(found);
  }
  void EndStep(int64_t step) {
    std::lock_guard<std::mutex> lock(mu_);
    steps_.erase(step);
  }
  std::vector<std::pair<int64_t, std::string>> For(const std::string& task) const {
    std::vector<std::pair<int64_t, std::string>> found;
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [step, keys] : steps_) {
      for (const auto& [key, owner] : keys) {
        if (owner == task) found.emplace_back(step, key);
      }
    }
    return found;
  }

 private:
  mutable std::mutex mu_;
  std::map<int64_t, std::map<std::string, std::string, std::less<>>> steps_;
};

}  // namespace rdma_transport
