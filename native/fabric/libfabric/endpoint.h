// What the channels of a device share: its provider, memory, peers and operations, and how its
// polling thread sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/host/sleeper.h"
#include "fabric/libfabric/domain.h"
#include "fabric/libfabric/memory.h"

namespace rdma_transport::fabric::libfabric {

// Returns how long the polling thread may sleep where nothing can wake it, after so long a silence:
// a sixty-fourth of it, so that no answer is late by more, between 20 microseconds and a
// millisecond.
Nanos BlindSleep(Nanos silence);

// Thread-safe, except where a function says otherwise.
class Endpoint {
 public:
  // Opens it; call it first. `nic` is of FindProviders().
  Status Init(const Settings& settings, const fi_info& nic, std::shared_ptr<const Library> library);
  // Ends all operations. Nothing may be started afterwards.
  void Stop();

  Domain& domain() const { return *domain_; }
  RegisteredMemory& memory() const { return *memory_; }
  const Pace& pace() const { return pace_; }
  // How many messages a peer may send before any is confirmed.
  uint32_t frames() const { return frames_; }
  // How long an earlier message or a write may be overdue before it counts as lost.
  Nanos peer_timeout() const { return peer_timeout_; }
  // The registration that every peer may read, see ChannelAddress.
  const Registration& mark() const { return *mark_; }
  // Memory for the bytes that a read of a peer's mark brings.
  Frame mark_destination() const { return mark_destination_; }
  // A card; none if it is an interface over TCP.
  std::vector<PortReport> Ports() const;
  const std::string& text() const { return port_.text; }  // for users

  // Those for messages have a frame. Returns null if there is no memory for one.
  Operation* NewOperation(Operation::Kind kind);
  void Return(Operation* operation);
  // An operation has been started, on so many bytes.
  void OnStarted(Operation::Kind kind, uint64_t length);

  // Returns whether the polling thread sleeps and thus cannot send delayed messages.
  bool asleep() const { return asleep_.load(); }
  host::Sleeper& sleeper() { return sleeper_; }
  const host::Sleeper& sleeper() const { return sleeper_; }
  // Wakes the polling thread in a few milliseconds, if nothing else does so earlier.
  void WakeSoon();

  // The polling thread calls these: when it is awake; when something has ended; when it is about to
  // sleep, which returns for how long; and to let an event wake it.
  void OnAwake();
  void OnEnded(Nanos now) { active_at_.store(now); }
  Nanos OnSleep(Nanos now);
  void LetEventsWake();

 private:
  std::unique_ptr<Domain> domain_;
  std::unique_ptr<RegisteredMemory> memory_;
  PortReport port_;  // without the numbers; without a name if it is no card
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> read_bytes_{0};
  Pace pace_;
  uint32_t frames_ = 0;
  Nanos peer_timeout_ = 0;
  std::shared_ptr<Registration> mark_;
  Frame mark_destination_;
  // An epoll descriptor, readable when the completion queue has work. The sleeper watches it only
  // while the polling thread sleeps.
  host::FileDescriptor queue_events_;
  host::Sleeper sleeper_;
  std::atomic<bool> asleep_{false};
  bool armed_ = false;               // the sleeper watches queue_events_ once
  std::atomic<Nanos> active_at_{0};  // the last start or end of an operation

  std::mutex operations_mu_;
  std::deque<Operation> operations_;
  std::vector<Operation*> free_[2];  // the second ones have frames
};

}  // namespace rdma_transport::fabric::libfabric
