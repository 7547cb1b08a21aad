// Keeps libfabric from taking over the signals of the process.
#pragma once

#include <signal.h>

#include <array>
#include <mutex>

namespace rdma_transport::fabric::libfabric {

// Restores, when it is destroyed, the actions of all signals that were changed during its life.
// Some providers install handlers when the library is loaded or asked what there is, even if they
// are never used; those of PSM end the process at SIGINT and SIGTERM, without running the handlers
// of the program. Thread-safe: one at a time lives, and others wait.
class SignalKeeper {
 public:
  SignalKeeper();
  ~SignalKeeper();
  SignalKeeper(const SignalKeeper&) = delete;
  SignalKeeper& operator=(const SignalKeeper&) = delete;

 private:
  struct Saved {
    bool known = false;
    struct sigaction action = {};
  };

  std::lock_guard<std::mutex> lock_;
  std::array<Saved, NSIG> before_;  // by number
};

}  // namespace rdma_transport::fabric::libfabric
