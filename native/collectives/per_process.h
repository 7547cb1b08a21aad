// What there is once in a process. Another thread may have held its lock while it was changing it
// when the process forked, so a forked child starts with a new one.
#pragma once

#include <atomic>

#include "fabric/host/fork_guard.h"

namespace rdma_transport::collectives {

// Thread-safe. For static storage. Nothing is destroyed: threads may use it when the process exits.
template <typename T>
class PerProcess {
 public:
  T& Get() {
    const int generation = fabric::host::ForkGeneration();
    Made* made = made_.load();
    while (made == nullptr || made->generation != generation) {
      auto* own = new Made{generation, {}};
      if (made_.compare_exchange_strong(made, own)) return own->value;
      delete own;
    }
    return made->value;
  }

 private:
  struct Made {
    int generation;
    T value;
  };
  std::atomic<Made*> made_{nullptr};
};

}  // namespace rdma_transport::collectives
