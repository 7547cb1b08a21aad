#include "collectives/mesh_state.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace rdma_transport::collectives {

Status MeshState::Wait(std::unique_lock<std::mutex>* lock, const Patience& patience,
                       const std::function<bool()>& done, const std::function<void()>& check,
                       const char* what) const {
  while (!done()) {
    const Nanos now = Now();
    if (now >= patience.deadline) {
      return Status(Code::kDeadlineExceeded, std::string("timed out: ") + what);
    }
    const Nanos until = std::min(patience.deadline, now + kCheckInterval);
    changed.wait_until(*lock,
                       std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until)));
    if (done()) return OkStatus();
    lock->unlock();
    check();
    const bool interrupted = patience.interrupted != nullptr && patience.interrupted();
    lock->lock();
    if (interrupted && !done()) return Status(Code::kCancelled, "interrupted");
  }
  return OkStatus();
}

}  // namespace rdma_transport::collectives
