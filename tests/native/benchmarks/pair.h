// Two devices of this process with a channel between them, both polled by the benchmark.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "common.h"
#include "fabric/fabric.h"
#include "fabric/registry.h"

namespace rdma_transport::benchmarks {

struct Handler : fabric::ChannelHandler {
  void OnConnected() override { connected = true; }
  void OnNotify(const char*, size_t) override { ++notes; }
  void OnTransfer(uint64_t, const Status& status) override {
    Require(status);
    ++transfers;
  }
  void OnClosed(const Status& status) override { Require(status); }

  bool connected = false;
  int notes = 0;
  int transfers = 0;
};

struct Side {
  // Opens a device if there is none.
  Side(const Settings& settings, uint64_t length, std::shared_ptr<fabric::Device> opened)
      : device(std::move(opened)) {
    if (device == nullptr) {
      std::unique_ptr<fabric::Device> made;
      Require(fabric::OpenDevice(settings, &made));
      device = std::move(made);
    }
    Require(device->Open(handler, &channel));
    Require(device->Allocate(length, fabric::Access::kRemoteReadWrite, nullptr, &region));
  }

  std::shared_ptr<fabric::Device> device;
  std::unique_ptr<fabric::Region> region;
  std::shared_ptr<Handler> handler = std::make_shared<Handler>();
  std::shared_ptr<fabric::Channel> channel;
};

// Each side has a region of `length` bytes; a may access that of b. a may use the device of another
// pair.
struct Pair {
  Pair(const Settings& settings, uint64_t length, std::shared_ptr<fabric::Device> of_a = nullptr)
      : a(settings, length, std::move(of_a)), b(settings, length, nullptr) {
    constexpr Nanos kSettling = 300 * kMillisecond;
    Require(b.channel->Connect(a.channel->Address(), fabric::Role::kPassive));
    Require(a.channel->Connect(b.channel->Address(), fabric::Role::kActive));
    PollUntil([&] { return a.handler->connected && b.handler->connected; });
    Require(b.channel->Share(b.region->key()));
    char word = 0;
    const iovec part = {&word, 1};
    Require(b.channel->Notify(&part, 1, fabric::Urgency::kWake));
    PollUntil([&] { return a.handler->notes == 1; });
    const Nanos settled = Now() + kSettling;  // further ports are tested before they are used
    PollUntil([&] { return Now() > settled; });
  }

  template <typename Condition>
  void PollUntil(Condition condition) {
    while (!condition()) {
      if (a.device->Poll() + b.device->Poll() == 0) usleep(50);
    }
  }

  Side a;
  Side b;
};

}  // namespace rdma_transport::benchmarks
