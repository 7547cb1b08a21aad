// Tests in which tasks send each other tensors.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "task.h"

namespace rdma_transport::testing {

class ProtocolTest : public ::testing::Test {
 protected:
  Status Send(Task& from, Task& to, Outgoing tensor) {
    CountingGrpc fallback(&grpc_sends_);
    return from.PeerTo(to)->Send(std::move(tensor), Task::CallTo(to), &fallback);
  }
  static std::shared_ptr<Catcher> Receive(Task& at, Task& from, int64_t step,
                                          const std::string& key) {
    auto catcher = std::make_shared<Catcher>();
    at.endpoint().Receive(at.PeerTo(from), step, key, catcher, Task::CallTo(from));
    return catcher;
  }
  static std::shared_ptr<Payload> Bytes(size_t length, int seed, memory::Arena* arena = nullptr) {
    return std::make_shared<Payload>(length, seed, arena);
  }

  std::atomic<int> grpc_sends_{0};
};

}  // namespace rdma_transport::testing
