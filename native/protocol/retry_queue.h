// Notifications that must not be lost, and whose order does not matter: what finds no room is said
// as soon as there is some.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "fabric/fabric.h"

namespace rdma_transport {

// Of one channel. Thread-safe.
class RetryQueue {
 public:
  // False: it found no room, and SendSome() is to be called until it says true.
  bool Send(fabric::Channel* channel, const iovec* parts, int count, fabric::Urgency urgency);
  // True: nothing is owed any more.
  bool SendSome(fabric::Channel* channel);

 private:
  std::mutex mu_;
  std::deque<std::pair<std::string, fabric::Urgency>> records_;
};

}  // namespace rdma_transport
