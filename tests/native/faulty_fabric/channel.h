#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/arrivals.h"
#include "fabric/fabric.h"
#include "faulty_fabric/device.h"

namespace rdma_transport::testing {

// The handler of the channel that it wraps, and the channel of the handler that it is opened for.
//
// In front of each notification goes its number, by which the other end sees that none is missing.
// As a card, a channel tells its peer which notifications were handed over, and parts in two steps:
// who breaks stops first and says so, the other one stops, and each knows then that nobody reads or
// writes any more, so that Unavailable is true.
class FaultyChannel final : public fabric::Channel,
                            public fabric::ChannelHandler,
                            public std::enable_shared_from_this<FaultyChannel> {
 public:
  FaultyChannel(FaultyDevice* device, std::weak_ptr<fabric::ChannelHandler> handler)
      : device_(device), card_(device->dice().faults().card), handler_(std::move(handler)) {}

  // Channel.
  std::string Address() const override { return inner_->Address(); }
  Status Connect(std::string_view peer_address, fabric::Role role,
                 const fabric::Terms& terms) override;
  Status Share(uint64_t key) override;
  bool Locate(const void* data, fabric::RemoteSpan* span) const override {
    return inner_->Locate(data, span);
  }
  const char* fabric() const override { return card_ ? "card" : inner_->fabric(); }
  std::string Route() const override { return inner_->Route(); }
  bool MapsPeer() const override { return !card_ && inner_->MapsPeer(); }
  bool Copies() const override { return !card_ && inner_->Copies(); }
  bool OutlivedByTransfers() const override { return inner_->OutlivedByTransfers(); }
  void Keep(OwnerRef memory) override { inner_->Keep(std::move(memory)); }
  uint64_t Delivered() const override { return card_ ? 0 : inner_->Delivered(); }
  std::shared_ptr<const void> Hold() const override { return card_ ? nullptr : inner_->Hold(); }
  Status Notify(const iovec* parts, int count, fabric::Urgency urgency, uint64_t* number,
                fabric::After after) override;
  fabric::Backlog backlog() const override { return inner_->backlog(); }
  Status Read(const fabric::RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const fabric::RemoteSpan& destination, uint64_t cookie) override;
  Status Flush() override { return card_ ? OkStatus() : inner_->Flush(); }
  Status Check(const void* local, const fabric::RemoteSpan& span,
               fabric::Access access) const override {
    return inner_->Check(local, span, access);
  }
  fabric::MappedSpan Map(const fabric::RemoteSpan& span) override;
  bool Owns(const void* data, fabric::RemoteSpan* span) const override {
    return !card_ && inner_->Owns(data, span);
  }
  void Close(const Status& reason) override;

  // ChannelHandler.
  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnDelivered(uint64_t number) override;
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;
  void OnReleased() override;

  // The device's, on the polling thread but for Break() and Busy().
  Status Open();
  int Advance(int most);
  bool Busy();
  void Break(const Status& reason);

 private:
  struct Event {
    enum class Kind { kConnected, kNotify, kDelivered, kTransfer, kClosed } kind;
    uint64_t due = 0;  // in polls
    std::string bytes;
    uint64_t number = 0;  // or the cookie
    Status status;
  };
  struct Work {
    enum class Kind { kRead, kWrite, kNotify } kind;
    fabric::RemoteSpan remote;
    char* local = nullptr;
    uint64_t cookie = 0;
    std::string bytes;
    fabric::Urgency urgency = fabric::Urgency::kWake;
    bool free = false;  // a notification that others may overtake
  };
  struct Transfer {
    const char* local = nullptr;
    uint64_t length = 0;
    uint64_t sum = 0;
    bool write = false;
    bool told = false;  // its end is among the events
  };

  void Expect(bool condition, const char* what) const;
  Status CheckTransfer(const fabric::RemoteSpan& remote, const char* local, uint64_t cookie,
                       bool write);
  void DropTransfer(uint64_t cookie);
  std::deque<Work>::iterator PlaceFor(fabric::After after);
  void Put(Event event);
  void EndTransfer(uint64_t cookie, const Status& status);
  void DoWork();
  void Place();
  bool DoOne(Work work);
  void SayBye(const Status& reason);
  void Tell(const Event& event);
  bool TakeDue(Event* event);
  int TellReleased();

  FaultyDevice* const device_;
  const bool card_;
  const std::weak_ptr<fabric::ChannelHandler> handler_;
  std::shared_ptr<fabric::Channel> inner_;

  mutable std::mutex mu_;
  bool connect_called_ = false;
  bool connected_ = false;  // the handler has been told
  bool stopped_ = false;    // nothing is sent, read or written any more
  bool parted_ = false;     // as a card: so did the peer
  bool broken_ = false;     // Break() was called, and nothing done yet
  Status reason_;
  Nanos deadline_ = 0;  // for the peer to part
  uint64_t notified_ = 0;
  uint64_t follows_ = 0;       // the last notification that follows everything
  std::deque<Work> work_;      // as a card
  std::deque<Work> unplaced_;  // writes that have ended
  std::deque<Event> ordered_;
  std::vector<Event> loose_;
  std::map<uint64_t, Transfer> transfers_;  // by cookie
  std::set<uint64_t> mapped_;               // regions that Map() was called for

  // The polling thread's.
  uint64_t polls_ = 0;
  Arrivals received_;  // notifications
  Arrivals handed_;    // of them, those that the handler was given
  uint64_t acknowledged_ = 0;
  uint64_t delivered_ = 0;
  bool inner_connected_ = false;
  bool inner_closed_ = false;
  bool closed_told_ = false;
  bool unavailable_told_ = false;
  bool released_ = false;
};

}  // namespace rdma_transport::testing
