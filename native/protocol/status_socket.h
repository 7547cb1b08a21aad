// Lets other programs of the same user ask this process what its transport did. A connection to its
// abstract local socket sends one line and gets JSON:
//
//   stats      StatsJson(), and the end of the connection
//   trace N    one line: {"tracing": true}, or {"error": reason} and the end. Then single transfers
//              are kept, up to N events, until the asker shuts down its sending side or is gone,
//              and Trace::StopJson() follows. One asker at a time.
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
  void Answer(int connection);
  void EndTrace();

  int listener_ = -1;
  int tracer_ = -1;  // who asked for the trace that is on; the thread's
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace rdma_transport
