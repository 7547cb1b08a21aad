// One rail of a channel, as its sender sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "fabric/striped/address.h"
#include "fabric/striped/wire.h"

namespace rdma_transport::fabric::striped {

class StripedChannel;

// The handler of a rail's plain channel.
class RailEnd final : public ChannelHandler {
 public:
  explicit RailEnd(std::weak_ptr<StripedChannel> owner) : owner_(std::move(owner)) {}

  uint32_t rail = 0;  // its ID; constant once the plain channel connects

  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnDelivered(uint64_t number) override;
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;
  void OnReleased() override;

 private:
  const std::weak_ptr<StripedChannel> owner_;
};

// A place of a channel for a rail, and the rail that is there now. Guarded by the channel's lock.
struct Rail {
  bool alive() const { return channel != nullptr && !closed; }

  Device* device = nullptr;
  std::string name;  // of the port
  std::shared_ptr<RailEnd> end;
  std::shared_ptr<Channel> channel;  // null if there is none
  uint32_t id = 0;                   // among all that the channel ever had; equal at both ends

  // Of the place.
  Nanos due = 0;       // when to offer another rail
  Nanos delay = 0;     // until the next offer but one
  bool active = true;  // the port, when it was looked at
  std::string unused;  // why the last attempt failed

  bool connected = false;
  bool greets = false;   // this end has shared all memory, and said so
  bool greeted = false;  // the peer has
  bool up = false;       // carries records and transfers
  bool carried = false;  // has done so, or records of other rails wait for one of it
  bool closed = false;   // the plain channel has closed
  bool released = false;
  Status status;  // if closed

  // Records, by their numbers.
  uint64_t sent = 0;
  uint64_t delivered = 0;
  uint64_t woken = 0;    // the last one whose delivery is told soon
  uint64_t marked = 0;   // the first one after all writes that were begun
  uint64_t ordered = 0;  // for which a notification that follows everything waits already
  uint64_t floor = 0;    // for which each notification waits that does not know better
  // Writes that the peer is not known to have, in the order of their begin; the last ones have no
  // record after them. Indexes of pieces.
  std::deque<uint32_t> writes;
  size_t uncovered = 0;
  std::set<uint64_t> shared;       // regions of this process that the peer was told of
  uint64_t under_way[2] = {0, 0};  // bytes of pieces: reads and writes
  bool flush = false;
  // Whether it does anything.
  Nanos heard = 0;  // when the last of its events came
  Nanos since = 0;  // what is under way is older, or there was an event

  // What to do when it has failed.
  bool failed = false;     // it carries nothing more
  uint64_t failed_as = 0;  // the how manieth of the channel
  Nanos deadline = 0;      // for the rest; 0: it has carried nothing, and may take its time
  bool declined = false;   // the peer is told that it does not connect
  bool down_sent = false;  // the peer is told that this end is closed
  bool peer_down = false;  // and has told it
  uint64_t received = 0;   // records that came, if it is closed
  uint64_t peer_received = 0;
  bool repeated = false;       // what was lost is in the lanes again
  bool settled = false;        // the peer has repeated all, too
  bool settled_there = false;  // the peer knows that all has been repeated
};

}  // namespace rdma_transport::fabric::striped
