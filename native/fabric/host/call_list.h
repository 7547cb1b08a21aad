// The channels that ask for a turn of the polling thread, so that the others need not be looked at.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

namespace rdma_transport::fabric::host {

// Thread-safe. `Name` is what a channel is called by. A name that is added twice is taken twice.
template <typename Name>
class CallList {
 public:
  void Add(Name name) {
    std::lock_guard<std::mutex> lock(mu_);
    names_.push_back(name);
    empty_.store(false);
  }
  // Sequentially consistent with Add(), so that one of two threads sees what the other stored
  // before its call.
  bool empty() const { return empty_.load(); }
  // Moves all names, in the order in which they were added, to `taken`, which loses its content.
  void Take(std::vector<Name>* taken) {
    taken->clear();
    if (empty()) return;
    std::lock_guard<std::mutex> lock(mu_);
    taken->swap(names_);
    empty_.store(true);
  }

 private:
  std::mutex mu_;
  std::vector<Name> names_;
  std::atomic<bool> empty_{true};
};

}  // namespace rdma_transport::fabric::host
