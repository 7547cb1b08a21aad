// How two unconnected processes exchange their channel addresses: one message each way over TCP.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "fabric/host/file_descriptor.h"
#include "rpc/stream.h"

namespace rdma_transport::rpc {

// Listens on all interfaces. A connection must send its request, of bounded length, within a few
// seconds. A slow connection does not delay the others.
class Listener {
 public:
  // Returns the reply to a request, on the listener's thread. Also called periodically with null,
  // for maintenance; the result is then ignored.
  using AcceptHandler = std::function<std::string(const std::string* request)>;

  ~Listener() { Close(); }
  // Listens on `port`, or on any free port if it is 0.
  Status Open(int port, AcceptHandler handler);
  int port() const { return port_; }
  // Stops listening. The handler is not called afterwards.
  void Close();

 private:
  void Serve();
  void Accept(Nanos now, std::vector<Stream>* streams);

  fabric::host::FileDescriptor listener_;
  fabric::host::FileDescriptor wake_;
  int port_ = 0;
  AcceptHandler handler_;
  std::atomic<bool> stop_{false};
  // Listener thread only:
  Nanos accept_after_ = 0;
  bool accept_failed_logged_ = false;
  std::thread thread_;
};

// Sends `request` to the listener at "host:port" or "[address]:port" and waits for the reply.
// Returns Unavailable if it does not answer by `deadline`, and Cancelled if `*cancelled` becomes
// true.
Status TcpBootstrap(const std::string& address, const std::string& request, Nanos deadline,
                    const std::atomic<bool>* cancelled, std::string* reply);

}  // namespace rdma_transport::rpc
