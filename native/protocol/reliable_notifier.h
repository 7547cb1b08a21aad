// Notifications of one channel that must not be lost. Those that find no room are sent as soon as
// there is some; others may overtake them.
#pragma once

#include <sys/uio.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "fabric/fabric.h"
#include "protocol/wire.h"

namespace rdma_transport {

// Thread-safe. Keeps the channel alive.
class ReliableNotifier {
 public:
  // `on_queued` is called, on any thread and with no lock held, when a notification was queued:
  // SendQueued() must then be called until it returns true.
  ReliableNotifier(std::shared_ptr<fabric::Channel> channel, std::function<void()> on_queued)
      : channel_(std::move(channel)), on_queued_(std::move(on_queued)) {}

  // Sends the notification now or later. Never blocks. Does nothing if the channel has closed: a
  // lost peer needs no notification.
  void Send(const iovec* parts, int count, fabric::Urgency urgency,
            fabric::After after = fabric::After::Everything());
  void SendControl(ControlMessage message, fabric::Urgency urgency,
                   fabric::After after = fabric::After::Everything());
  // Sends queued notifications. Returns true if the queue is empty.
  bool SendQueued();

 private:
  const std::shared_ptr<fabric::Channel> channel_;
  const std::function<void()> on_queued_;
  std::mutex mu_;
  struct Queued {
    std::string record;
    fabric::Urgency urgency;
    fabric::After after;
  };
  std::deque<Queued> queue_;
};

}  // namespace rdma_transport
