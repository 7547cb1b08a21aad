// Notifications that must not be lost, and whose order does not matter. Those that find no room are
// sent as soon as there is some.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "fabric/fabric.h"

namespace rdma_transport {

// Serves one channel. Thread-safe.
class RetryQueue {
 public:
  // Sends the notification. If there is no room, queues it and returns false; SendSome() must then
  // be called until it returns true.
  bool Send(fabric::Channel* channel, const iovec* parts, int count, fabric::Urgency urgency);
  // Sends queued notifications. Returns true if the queue is empty.
  bool SendSome(fabric::Channel* channel);

 private:
  std::mutex mu_;
  std::deque<std::pair<std::string, fabric::Urgency>> records_;
};

}  // namespace rdma_transport
