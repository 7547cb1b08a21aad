// How two processes that share nothing yet meet: one message each way over TCP, by which they learn
// each other's channel addresses.
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

// Listens on all interfaces. Who connects has a few seconds to say something, of bounded length,
// and what he does keeps nobody else waiting.
class Listener {
 public:
  // Gives the reply to a request, on the door's thread. With no request, now and then: for whatever
  // is to be looked after.
  using AcceptHandler = std::function<std::string(const std::string* request)>;

  ~Listener() { Close(); }
  // `port` 0: any that is free.
  Status Open(int port, AcceptHandler porter);
  int port() const { return port_; }
  // Afterwards the porter is not called any more.
  void Close();

 private:
  void Serve();
  void Accept(Nanos now, std::vector<Stream>* streams);

  fabric::host::FileDescriptor listener_;
  fabric::host::FileDescriptor wake_;
  int port_ = 0;
  AcceptHandler porter_;
  std::atomic<bool> stop_{false};
  // The door's thread's.
  Nanos accept_after_ = 0;
  bool accept_failed_logged_ = false;
  std::thread thread_;
};

// Asks the door at "host:port", "[address]:port". Unavailable: nobody is there, or does not answer
// until `deadline`; Cancelled: `*cancelled` became true.
Status TcpBootstrap(const std::string& address, const std::string& request, Nanos deadline,
                    const std::atomic<bool>* cancelled, std::string* reply);

}  // namespace rdma_transport::rpc
