// Reports this process's transport statistics to programs of the same user. A client connects to an
// abstract local socket, sends one line, and gets JSON:
//
//   stats      the statistics, then end of file
//   trace N    one line: {"tracing": true}, or {"error": reason} and end of file. Then up to N
//              events are recorded until the client shuts down its sending side or disconnects,
//              and Trace::StopJson() follows. One client at a time.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/status.h"

namespace rdma_transport {

// Not thread-safe.
class StatusSocket {
 public:
  // `stats` returns the statistics as JSON; it is called on the socket's own thread.
  explicit StatusSocket(std::function<std::string()> stats) : stats_(std::move(stats)) {}
  ~StatusSocket() { Stop(); }

  // Opens "rdma_transport.status.<uid>.<pid>".
  Status Start();
  void Stop();

 private:
  void Serve();
  void Answer(int connection);
  void EndTrace();

  const std::function<std::string()> stats_;
  int listener_ = -1;
  int tracer_ = -1;  // connection of the running trace; serving thread only
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace rdma_transport
