// How fast a channel is: two processes run the same test, one actively, one passively.
//
// No thread but the caller's: it polls the device while a test runs, and must be the only one that
// does. Between tests nobody polls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

enum class Test : int {
  kNotifyLatency,   // a notification of `bytes` goes back and forth
  kWriteLatency,    // a write of `bytes`, and a notification that tells of it, go back and forth
  kReadLatency,     // one read at a time
  kWriteBandwidth,  // `window` writes under way, each `bytes`, into one place
  kReadBandwidth,
  kNotifyRate,  // notifications of `bytes`, as fast as the peer takes them
};

struct Plan {
  Test test = Test::kNotifyLatency;
  uint64_t bytes = 0;
  uint64_t iterations = 0;
  uint64_t window = 128;
  Nanos patience = 10 * kSecond;  // without anything expected
};

struct Measured {
  // Of latency tests, one per iteration: half of a round trip, or the whole of a read.
  std::vector<Nanos> samples;
  // Of the others, from the first operation to the end of the last; the same for all `iterations`.
  Nanos elapsed = 0;
  // Bytes that were found otherwise than they were sent, on both sides.
  uint64_t wrong = 0;
};

// After each notification test, so many more are compared with what was sent.
constexpr uint64_t kComparedNotes = 16;

// One end of a channel, with memory to move. What a test leaves in a place is compared byte for
// byte with what was sent, outside of the time that is taken; within it only the last byte of
// transfers that come one by one, and the lengths of notifications. Some more notifications,
// untimed, are compared in whole. Errors: DeadlineExceeded: the peer does nothing; Unavailable and
// others of ChannelHandler::OnClosed(): the channel ended; DataLoss: it is no such peer.
class Meter final : public ChannelHandler {
 public:
  // With places of `largest` bytes. `device` must outlive it.
  static Status Open(Device* device, uint64_t largest, std::shared_ptr<Meter>* meter);

  std::string Address() const { return channel_->Address(); }
  // Begins to connect; the passive side first.
  Status Connect(std::string_view peer_address, Role role) {
    return channel_->Connect(peer_address, role);
  }
  // Waits for the peer, and shows it the memory. Both sides must be in it.
  Status Introduce(Nanos patience);
  // Tells the peer, which takes a moment; to be called before the end.
  void Close();
  const char* fabric() const { return channel_->fabric(); }
  std::string Route() const { return channel_->Route(); }

  // The two sides of a test; to be called with the same plan.
  Status Run(const Plan& plan, Measured* measured);
  Status Serve(const Plan& plan);
  // What memcpy() between the same places takes, for comparison; nobody else is needed.
  Status Copy(const Plan& plan, Measured* measured);

  void OnConnected() override { connected_ = true; }
  void OnNotify(const char* data, size_t length) override;
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;

 private:
  Meter(Device* device, uint64_t largest) : device_(device), largest_(largest) {}
  Status Check(const Plan& plan) const;
  void Prepare(const Plan& plan, bool active);
  void AwaitNotes(const Plan& plan);
  void CompareTarget(uint64_t bytes);
  template <typename Condition>
  Status Until(Nanos patience, Condition condition, bool sleeps = false);
  Status Expect(const Plan& plan, uint64_t notes, bool sleeps = false);
  Status Notify(uint64_t bytes);
  Status NotifyCompared(uint64_t bytes, uint64_t number);
  Status NotifyBack(const Plan& plan, bool active, Measured* measured);
  Status WriteBack(const Plan& plan, bool active, Measured* measured);
  Status ReadOneByOne(const Plan& plan, Measured* measured);
  Status Stream(const Plan& plan, Measured* measured);
  Status Flood(const Plan& plan, Measured* measured);
  Status TakeFlood(const Plan& plan);

  // A region is two places: one that the peer writes to and reads go to, and one that writes and
  // the peer's reads come from.
  char* target() const { return region_->address(); }
  char* source() const { return region_->address() + largest_; }
  RemoteSpan PeerTarget(uint64_t bytes) const { return {peer_key_, 0, bytes}; }
  RemoteSpan PeerSource(uint64_t bytes) const { return {peer_key_, peer_largest_, bytes}; }

  Device* const device_;
  const uint64_t largest_;
  std::unique_ptr<Region> region_;
  std::shared_ptr<Channel> channel_;
  uint64_t peer_key_ = 0;
  uint64_t peer_largest_ = 0;

  bool connected_ = false;
  bool closed_ = false;
  Status reason_;          // why it closed, or the first transfer that failed
  uint64_t said_[2] = {};  // by the last notification that says something
  size_t said_bytes_ = 0;
  uint64_t notes_ = 0;      // that came
  uint64_t expected_ = 0;   // of these, by Expect()
  uint64_t transfers_ = 0;  // that ended

  uint64_t turn_ = 0;            // tests so far; each moves bytes of its own
  uint64_t source_pattern_ = 0;  // of this side, and what
  uint64_t target_pattern_ = 0;  // the peer's source has
  uint64_t wrong_ = 0;           // bytes of this turn, on this side
  uint64_t awaited_bytes_ = 0;   // of each notification
  uint64_t awaited_begin_ = 0;   // that counts from here
  uint64_t compared_begin_ = 0;  // and is compared from here
  uint64_t awaited_end_ = 0;     // to here
};

}  // namespace rdma_transport::fabric
