// What the endpoints of a process share: the fabric device, the arenas, the polling threads.
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

// Thread-safe, except Start(), StartOn() and Stop().
class Runtime {
 public:
  // Returns the runtime of this process, which is created on first use. A forked child gets its
  // own. It is never destroyed; its threads end with the process.
  static Status Get(Runtime** runtime);
  // Returns the runtime that Get() created, or null.
  static Runtime* IfMade();

  explicit Runtime(const Settings& settings);
  ~Runtime();

  // Opens the fabric and starts polling. If the fabric cannot be opened, returns an error if the
  // settings name it, and otherwise works without one.
  Status Start();
  // Starts with a device that is already open.
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

  // Sets how many tasks of the endpoint's cluster, including itself, are on this host. With
  // ARENA_SIZE=auto, all of them get an equal share of its memory.
  void ShareMemory(const Endpoint* endpoint, size_t tasks_on_host);

  // Makes Endpoint::Tick() run regularly until it returns false.
  void ArmTimer();

  // Runs the work that deliveries make ready; see Defer().
  class Pool {
   public:
    virtual ~Pool() = default;
    // Runs `work` on another thread. Thread-safe.
    virtual void Schedule(std::function<void()> work) = 0;
    // Runs `work` on the calling thread before returning.
    virtual void RunHere(const std::function<void()>& work) = 0;
  };
  // Must be called before the first link comes up. `pool` must outlive the runtime.
  void SetPool(Pool* pool) { pool_.store(pool); }
  // On a delivering thread, queues `work` to run there after the current deliveries, without waking
  // another thread. On any other thread, returns false and leaves `work` untouched.
  static bool Defer(std::function<void()>* work);
  // Deferred work calls this before anything slower than waking a thread. Another thread then takes
  // over polling and the remaining deferred work. Without this call, peers need not wake any
  // thread, because this one will poll again at once.
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
  uint64_t whole_budget_ = 0;  // for all tasks on this host
  std::shared_ptr<memory::Budget> budget_;
  std::unique_ptr<memory::Arena> arena_;
  std::unique_ptr<memory::SlotPools> slots_;
  std::unique_ptr<memory::Arena> receive_arena_;  // slots that peers write into
  std::string no_fabric_reason_;

  StatusSocket status_socket_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> armed_{false};
  std::atomic<Nanos> next_tick_{0};
  Nanos last_tick_ = 0;

  // The thread that holds it polls. The others sleep in the device, so that one of them can take
  // over if something arrives while the polling thread runs deferred work.
  std::mutex lead_mu_;
  std::vector<std::thread> threads_;
  std::atomic<int> sleepers_{0};
  std::atomic<int> dated_sleepers_{0};  // sleepers that wake up for the next tick
  std::atomic<Pool*> pool_{nullptr};

  mutable std::mutex mu_;
  std::condition_variable loop_ended_;
  int running_ = 0;
  std::vector<Endpoint*> endpoints_;
  std::map<const Endpoint*, size_t> tasks_on_host_;
};

}  // namespace rdma_transport
