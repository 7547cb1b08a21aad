// What the endpoints of one process share: the fabric device, the arena, the polling thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/secret_file.h"
#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"
#include "memory/slot_pools.h"
#include "protocol/status_socket.h"

namespace rdma_transport {

class Endpoint;

class Runtime {
 public:
  // The runtime of this process (a forked child gets one of its own), made on first use. It is
  // never destroyed; its thread ends with the process.
  static Status Get(Runtime** runtime);
  // The one that Get() made, or null.
  static Runtime* IfMade();

  explicit Runtime(const Settings& settings);
  ~Runtime();

  // With a fabric that cannot be opened: an error if the settings ask for it by name, otherwise the
  // runtime works without one.
  Status Start();
  // The same with a device that is open already.
  void StartOn(std::unique_ptr<fabric::Device> device);
  void Stop();

  const Settings& settings() const { return settings_; }
  fabric::Device* device() const { return device_.get(); }
  memory::Arena* arena() const { return arena_.get(); }
  memory::SlotPools* slots() const { return slots_.get(); }
  memory::Arena* receive_arena() const { return receive_arena_.get(); }
  const std::string& no_fabric_reason() const { return no_fabric_reason_; }
  SecretFile* secret_file() { return &secret_file_; }

  void AddEndpoint(Endpoint* endpoint);
  void RemoveEndpoint(Endpoint* endpoint);
  std::vector<Endpoint*> Endpoints() const;

  // With ARENA_SIZE=auto: so many tasks of the endpoint's cluster, with itself, are on this host.
  // All of them get an equal share of its memory.
  void ShareMemory(const Endpoint* endpoint, size_t tasks_on_host);

  // Sees to it that Endpoint::Tick() runs regularly until it finds nothing to look after.
  void ArmTimer();

  // Where work goes that a delivery makes ready: see Defer().
  class Pool {
   public:
    virtual ~Pool() = default;
    virtual void Schedule(std::function<void()> work) = 0;
    virtual void RunHere(const std::function<void()>& work) = 0;
  };
  // Before the first link comes up.
  void SetPool(Pool* pool) { pool_.store(pool); }
  // On a thread that is delivering: keeps `work` to run it here, without waking another thread,
  // when the deliveries at hand are done. False, and `work` untouched, on any other thread.
  static bool Defer(std::function<void()>* work);
  // Work that was deferred calls this before anything that takes longer than waking a thread: from
  // here on somebody else polls, and runs the other work that was deferred with it. Until then
  // peers need not wake anybody, because this thread will poll again at once.
  static void LongWorkAhead();

 private:
  void Loop();
  void Lead(std::unique_lock<std::mutex> leadership);
  bool RunDeferred(std::unique_lock<std::mutex>* leadership);
  void HandOver();
  void SleepAsFollower();
  void Tick(Nanos now);

  const Settings settings_;
  SecretFile secret_file_;
  const Nanos tick_interval_;
  std::unique_ptr<fabric::Device> device_;
  uint64_t whole_budget_ = 0;  // of all tasks on this host
  std::shared_ptr<memory::Budget> budget_;
  std::unique_ptr<memory::Arena> arena_;
  std::unique_ptr<memory::SlotPools> slots_;
  std::unique_ptr<memory::Arena> receive_arena_;  // the slots that peers write into
  std::string no_fabric_reason_;

  StatusSocket status_socket_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> armed_{false};
  std::atomic<Nanos> next_tick_{0};
  Nanos last_tick_ = 0;

  // Whoever holds it polls. The others sleep in the device, so that one of them takes over when
  // something comes while the leader runs work of its own.
  std::mutex lead_mu_;
  std::vector<std::thread> threads_;
  std::atomic<int> sleepers_{0};
  std::atomic<int> dated_sleepers_{0};  // that wake up for the next tick
  std::atomic<Pool*> pool_{nullptr};

  mutable std::mutex mu_;
  std::condition_variable loop_ended_;
  int running_ = 0;
  std::vector<Endpoint*> endpoints_;
  std::map<const Endpoint*, size_t> tasks_on_host_;
};

}  // namespace rdma_transport
