#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "fabric/fabric.h"
#include "fabric/greeting.h"
#include "loopback_fabric/device.h"

namespace rdma_transport::testing {

// Guards all channels of the process, and every copy between them. Never held while a handler runs
// or a channel is destroyed.
std::mutex& Mutex();

// See Channel for the contract. Both ends call each other directly; what one end has to report is
// queued at the other one, and its polling thread reports it.
class LoopbackChannel final : public fabric::Channel {
 public:
  LoopbackChannel(LoopbackDevice* device, std::weak_ptr<fabric::ChannelHandler> handler);
  ~LoopbackChannel() override;

  std::string Address() const override;
  Status Connect(std::string_view peer_address, fabric::Role role,
                 const fabric::Terms& terms) override;
  const char* fabric() const override { return "loopback"; }
  std::string Route() const override { return "same process"; }
  bool Copies() const override { return true; }
  Status Share(uint64_t key) override;
  bool Locate(const void* data, fabric::RemoteSpan* span) const override {
    return device_->Locate(data, span);
  }
  Status Notify(const iovec* parts, int count, fabric::Urgency urgency, uint64_t* number,
                fabric::After after) override;
  uint64_t Delivered() const override;
  fabric::Backlog backlog() const override;
  Status Read(const fabric::RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const fabric::RemoteSpan& destination, uint64_t cookie) override;
  Status Check(const void* local, const fabric::RemoteSpan& span,
               fabric::Access access) const override;
  void Close(const Status& reason) override;

  // For the device, on the polling thread. Reports queued events and returns how many there were.
  int Poll();
  // Returns whether Poll() has something to do. Requires Mutex().
  bool HasWork() const {
    return !events_.empty() || (state_ != State::kClosed && handler_.expired());
  }

 private:
  using Event = std::function<void(fabric::ChannelHandler*)>;
  enum class State { kNew, kConnecting, kConnected, kClosed };

  // All of these require Mutex().
  void Queue(Event event);
  void End(const Status& reason);
  // Calls `copy` with the peer's address of `span`, if this end may access it.
  Status Reach(const fabric::RemoteSpan& span, fabric::Access least,
               const std::function<void(char*)>& copy) const;

  void Deliver(const std::string& text, uint64_t number, fabric::ChannelHandler* handler);

  LoopbackDevice* const device_;
  const std::weak_ptr<fabric::ChannelHandler> handler_;
  const std::string id_;
  const std::string token_;

  State state_ = State::kNew;
  fabric::Greeting greeting_;
  LoopbackChannel* peer_ = nullptr;  // while kConnected
  Status reason_;                    // why it closed
  std::set<uint64_t> shared_;        // regions of this side
  std::deque<Event> events_;
  uint64_t queued_bytes_ = 0;  // of notifications in events_
  uint64_t notified_ = 0;
  uint64_t delivered_ = 0;
};

}  // namespace rdma_transport::testing
