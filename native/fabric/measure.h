// Measures the performance of a channel. Two processes run the same test, one as the active side
// and one as the passive side.
//
// Where the channel maps the peer's memory, reads and writes are those of RemoteRegion: one copy
// each, without a window and without OnTransfer().
//
// All work runs in the caller's thread. It polls the device while a test runs and must be its only
// polling thread. The device is not polled between tests.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

// What is measured, between two ends that both call Meter.
enum class Test : int {
  kNotifyLatency,   // a notification of `bytes` travels back and forth
  kWriteLatency,    // a write of `bytes` and a notification travel back and forth
  kReadLatency,     // one read at a time
  kWriteBandwidth,  // up to `window` writes of `bytes` in flight, all to one buffer
  kReadBandwidth,
  kNotifyRate,  // notifications of `bytes`, as fast as the peer consumes them
  // Writes of 1 to `bytes` bytes, large ones rarely, among several times as many notifications. The
  // passive side checks at each notification that it comes once, after what it must follow, and
  // that all bytes of its write are there at that moment. See Meter::found().
  kOrder,
};

// One measurement. `bytes` is the size of each operation or notification.
struct Plan {
  Test test = Test::kNotifyLatency;
  uint64_t bytes = 0;
  uint64_t iterations = 0;
  uint64_t window = 128;
  Nanos timeout = 10 * kSecond;  // timeout while the peer makes no progress
  Nanos duration = 0;            // kOrder: ends after this time, too. 0: no limit
};

// The result at the active end.
struct Measured {
  // Latency tests: one sample per iteration, half of a round trip or a whole read.
  std::vector<Nanos> samples;
  // Other tests: time from the start of the first operation to the end of the last, for all
  // `iterations`.
  Nanos elapsed = 0;
  // Bytes that differ from what was sent, counted on both sides; kOrder: Found::faults().
  uint64_t wrong = 0;
};

// What the passive side of kOrder found.
struct Found {
  uint64_t notes = 0;
  uint64_t writes = 0;
  uint64_t bytes = 0;       // written
  uint64_t early = 0;       // notifications that came before all bytes of their write
  uint64_t corrupt = 0;     // of those, the ones whose bytes did not come soon afterwards, either
  uint64_t misordered = 0;  // notifications that overtook what they must follow
  uint64_t repeated = 0;    // notifications that came twice, or that nobody sent
  uint64_t missing = 0;     // notifications that did not come
  std::string first;        // describes the first fault

  uint64_t faults() const { return early + misordered + repeated + missing; }
};

// Number of untimed notifications that are compared with what was sent, after each notification
// test.
constexpr uint64_t kComparedNotes = 16;

// One end of a channel, with a region to transfer to and from. After the timed part, a test
// compares the target buffer byte by byte with what was sent. The timed part checks only the last
// byte of each transfer in latency tests and the length of notifications; afterwards, untimed
// notifications are compared in full.
//
// Errors: DeadlineExceeded if the peer makes no progress; the code of ChannelHandler::OnClosed() if
// the channel closes; DataLoss if the peer does not follow this protocol. Not thread-safe.
class Meter final : public ChannelHandler {
 public:
  // Creates buffers of `largest` bytes. `device` must outlive the meter.
  static Status Open(Device* device, uint64_t largest, std::shared_ptr<Meter>* meter);

  std::string Address() const { return channel_->Address(); }
  // Starts to connect. The passive side must call it first. `key` is that of Terms.
  Status Connect(std::string_view peer_address, Role role, std::string key = {}) {
    return channel_->Connect(peer_address, role, {std::move(key), WriteEnd::kReusable});
  }
  // Waits for the connection, then exchanges the regions. Both sides must call it at the same time.
  Status Introduce(Nanos timeout);
  // Closes the channel and waits briefly until the peer is notified. Call it before destruction.
  void Close();
  const char* fabric() const { return channel_->fabric(); }
  std::string Route() const { return channel_->Route(); }

  // Run() is the active side of a test and Serve() the passive side. Both need the same plan.
  Status Run(const Plan& plan, Measured* measured);
  Status Serve(const Plan& plan);
  // Measures memcpy() between the same buffers, for comparison. Does not involve the peer.
  Status Copy(const Plan& plan, Measured* measured);
  // What the last Serve() of kOrder found, also if it failed.
  const Found& found() const { return found_; }

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
  Status Until(Nanos timeout, const std::function<bool()>& condition, bool sleeps = false);
  Status Expect(const Plan& plan, uint64_t notes, bool sleeps = false);
  Status Notify(uint64_t bytes);
  Status NotifyCompared(uint64_t bytes, uint64_t number);
  Status NotifyBack(const Plan& plan, bool active, Measured* measured);
  Status WriteBack(const Plan& plan, bool active, Measured* measured);
  Status ReadOnce(const Plan& plan, uint64_t number);
  Status ReadOneByOne(const Plan& plan, Measured* measured);
  Status Stream(const Plan& plan, Measured* measured);
  Status StreamCopies(const Plan& plan);
  Status StreamTransfers(const Plan& plan);
  Status Flood(const Plan& plan, Measured* measured);
  Status TakeFlood(const Plan& plan);
  void PrepareOrder(bool active);
  Status Order(const Plan& plan, Measured* measured);
  Status SendOrdered(const Plan& plan, uint64_t number, bool last);
  Status TakeOrder(const Plan& plan);
  void TakeOrdered(const char* data, size_t length);
  void CheckOrdered(uint64_t number, uint64_t offset, uint64_t length);
  void Fault(uint64_t* count, const std::string& what);

  // The region consists of two buffers: the target of the peer's writes and of own reads, and the
  // source of own writes and of the peer's reads.
  char* target() const { return region_->address(); }
  char* source() const { return region_->address() + largest_; }
  RemoteSpan PeerTarget(uint64_t bytes) const { return {peer_key_, 0, bytes}; }
  RemoteSpan PeerSource(uint64_t bytes) const { return {peer_key_, peer_largest_, bytes}; }

  Device* const device_;
  const uint64_t largest_;
  std::unique_ptr<Region> region_;
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<RemoteRegion> peer_region_;  // null if the channel does not map it
  uint64_t peer_key_ = 0;
  uint64_t peer_largest_ = 0;

  bool connected_ = false;
  bool closed_ = false;
  Status reason_;          // why the channel closed, or the error of the first failed transfer
  uint64_t said_[2] = {};  // content of the last notification with a report
  size_t said_bytes_ = 0;
  uint64_t notes_ = 0;      // notifications received
  uint64_t expected_ = 0;   // notifications that Expect() has waited for
  uint64_t transfers_ = 0;  // transfers that have ended

  uint64_t turn_ = 0;            // tests so far; each uses its own patterns
  uint64_t source_pattern_ = 0;  // pattern of this side's source buffer
  uint64_t target_pattern_ = 0;  // pattern of the peer's source buffer
  uint64_t wrong_ = 0;           // differing bytes of this test, on this side
  uint64_t awaited_bytes_ = 0;   // expected length of each notification
  uint64_t awaited_begin_ = 0;   // number of the first notification to check
  uint64_t compared_begin_ = 0;  // number of the first one to compare in full
  uint64_t awaited_end_ = 0;     // end of the notifications to check

  // kOrder. The buffers are divided into slots, one for each write that is under way.
  static constexpr uint64_t kOrderWindow = 1024;  // notifications that are not confirmed
  static constexpr uint64_t kSlots = 16;
  bool ordering_ = false;
  bool active_ = false;
  uint64_t random_ = 0;
  uint64_t writes_ = 0;           // active side
  uint64_t slots_under_way_ = 0;  // active side: bits of slots whose write has not ended
  std::array<uint64_t, kSlots> slot_ends_{};  // active side: what must be confirmed before reuse
  std::bitset<kOrderWindow> taken_;           // passive side, by number
  uint64_t taken_prefix_ = 0;                 // passive side: all numbers below have been taken
  uint64_t confirmed_ = 0;                    // passive side: of these, what the peer knows
  bool ended_ = false;                        // passive side: the last notification has come
  Found found_;
};

}  // namespace rdma_transport::fabric
