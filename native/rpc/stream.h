// One message each way on a nonblocking TCP connection: a 32-bit length and the bytes.
#pragma once

#include <string>
#include <utility>

#include "base/clock.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::rpc {

// Not thread-safe.
class Stream {
 public:
  enum class Progress { kWaits, kDone, kBroken };

  Stream(fabric::host::FileDescriptor socket, Nanos deadline)
      : socket_(std::move(socket)), deadline_(deadline) {}

  int fd() const { return socket_.get(); }
  Nanos deadline() const { return deadline_; }
  bool sending() const { return !out_.empty(); }
  const std::string& received() const { return in_; }

  void Queue(const std::string& message);
  // Sends what it can without blocking. Returns kDone when everything queued has been sent.
  Progress Send();
  // Receives what it can without blocking. Returns kDone when received() is a whole message.
  Progress Receive();

 private:
  fabric::host::FileDescriptor socket_;
  Nanos deadline_;
  std::string out_;
  std::string in_;
  size_t expected_ = 0;
  bool length_known_ = false;
};

}  // namespace rdma_transport::rpc
