// A channel's handler that records what it is told, and checks what every fabric promises about the
// order of its calls.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fabric/fabric.h"

namespace rdma_transport::testing {

// Not thread-safe: read it on the polling thread, or when that has ended.
struct Recorder : fabric::ChannelHandler {
  void OnConnected() override {
    EXPECT_FALSE(connected || closed);
    connected = true;
  }
  void OnNotify(const char* data, size_t length) override {
    EXPECT_TRUE(connected) << "only OnClosed() may come before OnConnected()";
    EXPECT_FALSE(closed) << "only OnReleased() may follow OnClosed()";
    notes.emplace_back(data, length);
  }
  void OnDelivered(uint64_t number) override {
    EXPECT_FALSE(closed) << "only OnReleased() may follow OnClosed()";
    EXPECT_GE(number, delivered);
    delivered = number;
  }
  void OnTransfer(uint64_t cookie, const Status& status) override {
    EXPECT_FALSE(closed) << "only OnReleased() may follow OnClosed()";
    transfers.emplace_back(cookie, status);
  }
  void OnClosed(const Status& status) override {
    EXPECT_FALSE(closed);
    closed = true;
    reason = status;
  }
  void OnReleased() override {
    EXPECT_TRUE(closed && !released);
    released = true;
  }

  bool connected = false;
  bool closed = false;
  bool released = false;
  uint64_t delivered = 0;
  Status reason;
  std::vector<std::string> notes;
  std::vector<std::pair<uint64_t, Status>> transfers;
};

}  // namespace rdma_transport::testing
