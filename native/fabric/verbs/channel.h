#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "fabric/greeting.h"
#include "fabric/host/region.h"
#include "fabric/verbs/outbox.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/ring.h"
#include "fabric/verbs/transfers.h"
#include "fabric/verbs/windows.h"

namespace rdma_transport::fabric::verbs {

class VerbsDevice;

// The first queue pair carries notifications, small transfers and a share of the large ones; the
// others carry only shares of large transfers.
//
// Lock: mu_ guards all of the sending side. No lock is held while the handler runs.
class VerbsChannel final : public Channel {
 public:
  VerbsChannel(VerbsDevice* device, std::weak_ptr<ChannelHandler> handler, uint32_t tag);
  ~VerbsChannel() override;

  Status Open();

  std::string Address() const override;
  void Authenticate(std::string key) override { key_ = std::move(key); }
  Status Connect(std::string_view peer_address, Role role) override;
  const char* fabric() const override { return "verbs"; }
  std::string Route() const override;
  bool MapsPeer() const override { return false; }
  bool Copies() const override { return false; }
  Status Share(uint64_t key) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number) override;
  Backlog backlog() const override;
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override;
  Status Flush() override;
  MappedSpan Map(const RemoteSpan&) override { return MappedSpan(); }
  bool Owns(const void*, RemoteSpan*) const override { return false; }
  void Close(const Status& reason) override;

  // The rest is for the device, on the polling thread.
  uint32_t tag() const { return tag_; }
  // Returns how much of it was worth anybody's while.
  int OnCompletion(const ibv_wc& completion);
  // What is due besides completions: returns false when nothing is left to do for it, ever.
  bool Service();
  bool NeedsService() const {
    return needs_service_.load(std::memory_order_relaxed) || handler_.expired();
  }
  bool finished() const { return state_.load() == State::kFinished; }
  // The device sleeps from now on: what was kept back must leave. Returns whether Probe() is to be
  // called after a while.
  bool BeforeArmNotification();
  // A side that waits for room, or has nothing to say, has nothing under way that could fail: sees
  // whether the peer's card still answers.
  void Probe(Nanos now);
  // An error that no completion tells.
  void Fail(const Status& reason);
  void ForgetRegion(uint64_t key);

 private:
  // kClosing: the last record is on its way. kBroken: no operation succeeds any more, and what was
  // under way is being flushed.
  enum class State { kNew, kConnecting, kConnected, kClosing, kBroken, kFinished };

  // With mu_ held.
  Status Greet(RecordKind kind);
  Status AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled);
  Status ChargePending(uint64_t peer_ring);
  void SettlePending();
  void Push(Work work);
  void Pump();
  Status OpenWindows(uint64_t key, const std::shared_ptr<Registration>& memory, size_t count);
  void BindWindows(uint64_t key);
  std::vector<uint32_t> KeysOf(uint64_t key, uint32_t rkey) const;
  Status Transfer(Work::Kind kind, const RemoteSpan& span, char* local, uint64_t cookie);
  void PartLocked(const Status& reason);
  void BreakLocked(const Status& reason);

  // On the polling thread.
  int OnReceive(const ibv_wc& completion);
  void OnSent(size_t index, const ibv_wc& completion);
  Status OnCredit(const Immediate& credit);
  Status HandleBatch(const Immediate& immediate);
  Status HandleRecord(RecordKind kind, std::string_view record);
  Status HandleGreeting(RecordKind kind, std::string_view shown);
  Status HandleRegion(std::string_view record);
  bool DeliverNews();
  void Finish();

  bool Serving(State state) const {
    return state == State::kConnecting || state == State::kConnected || state == State::kClosing;
  }
  // Something for Service() to do.
  void Attend();

  VerbsDevice* const device_;
  const std::weak_ptr<ChannelHandler> handler_;
  const uint32_t tag_;
  const std::string token_;
  std::string key_;
  Greeting greeting_;
  std::string route_;
  bool passive_ = false;
  bool knock_due_ = false;     // nobody has yet seen that the passive side's ring can be written
  int64_t pending_bytes_ = 0;  // charged for a peer that has not come yet
  int depth_ = 0;              // work requests per queue pair, and batches that the peer may send

  // What the peer writes.
  std::unique_ptr<host::MemoryRegion> ring_;
  std::shared_ptr<Registration> ring_registration_;
  RingReader reader_;
  // The polling thread's.
  bool greeted_ = false;
  bool ignore_input_ = false;  // what follows in the ring is not listened to
  Nanos answered_at_ = 0;      // when the peer's card was last known to be there

  mutable std::mutex mu_;
  std::atomic<State> state_{State::kNew};
  std::vector<std::unique_ptr<QueuePair>> pairs_;
  Windows windows_;  // bound on these
  Outbox outbox_;
  Transfers transfers_;
  uint64_t notified_ = 0;
  uint64_t delivered_ = 0;
  uint64_t told_ = 0;  // of delivered_, to the handler
  std::set<uint64_t> shared_;
  Status close_reason_;
  Nanos deadline_ = 0;  // of kClosing and kBroken
  uint64_t flushed_ = 0;

  std::atomic<bool> needs_service_{false};
};

}  // namespace rdma_transport::fabric::verbs
