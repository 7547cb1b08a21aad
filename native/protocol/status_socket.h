// Lets other programs of the same user ask this process what its transport did: each connection to
// its abstract local socket gets StatsJson(), and is closed.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "base/status.h"

namespace rdma_transport {

class StatusSocket {
 public:
  ~StatusSocket() { Stop(); }

  // Opens "rdma_transport.status.<uid>.<pid>".
  Status Start();
  void Stop();

 private:
  void Serve();

  int listener_ = -1;
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace rdma_transport
