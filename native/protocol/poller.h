// The threads that poll a fabric's device, and the work that they run.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"
#include "fabric/fabric.h"

namespace rdma_transport {

// Thread-safe, except Stop().
//
// One thread at a time, the polling thread, leads: it polls the device, calls `tick`, and collects
// the work that its deliveries make ready. When it runs that work, another thread takes over.
class Poller {
 public:
  // Runs the work that deliveries make ready; see Defer().
  class Pool {
   public:
    virtual ~Pool() = default;
    // Runs `work` on another thread. Thread-safe.
    virtual void Schedule(std::function<void()> work) = 0;
    // Runs `work` on the calling thread before returning.
    virtual void RunHere(const std::function<void()>& work) = 0;
  };
  // Checks timeouts; returns true if it must be called again. `suspended` tells that this process
  // itself was not running.
  using TickFunction = std::function<bool(Nanos now, bool suspended)>;

  // Starts to poll `device`, which must outlive this object. `tick` is called on the polling
  // thread.
  Poller(fabric::Device* device, const Settings& settings, TickFunction tick);
  ~Poller() { Stop(); }

  // Stops polling. Does not wait for a callback that does not return in time: its thread is
  // detached, and this object must then never be destroyed.
  void Stop();

  // Makes `tick` run regularly until it returns false.
  void ArmTimer();

  // Must be called before the first channel is connected. `pool` must outlive this object.
  void SetPool(Pool* pool) { pool_.store(pool); }
  // Runs `work`, which may take long, on another thread; without a pool, on the calling one.
  void Schedule(std::function<void()> work);
  // On a delivering thread, queues `work` to run there after the current deliveries, without waking
  // another thread. On any other thread, returns false and leaves `work` untouched.
  static bool Defer(std::function<void()>* work);
  // In deferred work, queues `work` behind what this thread still has to run. On any other thread,
  // or when it has handed over polling, returns false and leaves `work` untouched. The caller must
  // be sure that what runs now announces long work.
  static bool DeferMore(std::function<void()>* work);
  // Deferred work calls this before anything slower than waking a thread. Another thread then takes
  // over polling and the remaining deferred work. Without this call, peers need not wake any
  // thread, because this one will poll again at once; if it does not, another thread takes over
  // after one interval of `tick`.
  static void LongWorkAhead();
  // Returns whether this thread runs deferred work and will poll again after it.
  static bool RunsDeferredWork() { return batch_ != nullptr; }
  // Deferred work calls this before something that is expected to take so long. If this thread
  // would then have run deferred work for too long, acts as LongWorkAhead().
  static void WorkAhead(Nanos expected);

 private:
  class Batch;

  void Loop();
  bool TryToLead();
  void Lead(std::unique_lock<std::mutex> leadership);
  bool RunDeferred(std::unique_lock<std::mutex>* leadership);
  void HandOver();
  void HandOutStuckWork();
  bool BatchesWait();
  void SleepAsFollower();
  void Tick(Nanos now);

  // The batch that this thread runs, until it hands polling over.
  static thread_local Batch* batch_;
  // On the leading thread: the work that its deliveries made ready.
  static thread_local std::vector<std::function<void()>>* deferred_;

  fabric::Device* const device_;
  const Nanos spin_;
  const Nanos tick_interval_;
  const TickFunction tick_;

  std::atomic<bool> stop_{false};
  std::atomic<bool> armed_{false};
  std::atomic<Nanos> next_tick_{0};
  Nanos last_tick_ = 0;  // polling thread only

  // The thread that holds it polls. The others sleep in the device, so that one of them can take
  // over if something arrives while the polling thread runs deferred work.
  std::mutex lead_mu_;
  // A thread could not lead, although an event may have woken it alone. The thread that leads, or
  // the next one, must look for events once more.
  std::atomic<bool> missed_{false};
  std::vector<std::thread> threads_;
  std::atomic<int> sleepers_{0};
  std::atomic<int> dated_sleepers_{0};  // sleepers that wake up within an interval of ticks
  std::atomic<Pool*> pool_{nullptr};
  std::atomic<Nanos> last_batch_{0};  // when deferred work last began to run here
  std::mutex batches_mu_;
  std::vector<Batch*> batches_;  // those running, with what is left of them

  std::mutex running_mu_;
  std::condition_variable loop_ended_;
  int running_ = 0;
};

}  // namespace rdma_transport
