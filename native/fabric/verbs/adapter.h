// An opened port with its protection domain, registered memory, completion queues and events.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/host/slow_calls.h"
#include "fabric/verbs/library.h"
#include "fabric/verbs/ports.h"

namespace rdma_transport::fabric::verbs {

// A completion queue shared by queue pairs. Each reserves as many entries as it can have
// completions, so the queue never overruns. A device has one that grows, and more of them only if
// the card cannot resize it or at the card's limit.
class CompletionQueue {
 public:
  CompletionQueue(ibv_cq* queue, int capacity) : queue_(queue), capacity_(capacity) {}

  ibv_cq* get() const { return queue_; }
  using Resize = decltype(ibv_resize_cq);
  // Resizes the queue if fewer than `entries` are free. Returns false if that fails or would take
  // more than `limit` entries in all, or the queue is broken.
  bool Reserve(int entries, Resize* resize, int limit);
  // Releases entries of a destroyed queue pair. Its completions may still be in the queue, so the
  // entries become free when the queue has been emptied once more.
  void Release(int entries) { released_.fetch_add(entries); }
  int TakeReleased() { return released_.exchange(0); }
  void Emptied(int released);

  // The card or its driver has given it up: completions may be lost. It is not used again. Returns
  // false if that was known.
  bool Break() { return !broken_.exchange(true); }
  bool broken() const { return broken_.load(); }

 private:
  ibv_cq* const queue_;
  std::atomic<bool> broken_{false};
  std::mutex mu_;
  int capacity_;
  int reserved_ = 0;
  std::atomic<int> released_{0};
};

// Memory registered for this process or for peers. Operations name it by its iova, which can differ
// from its address.
class Registration {
 public:
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  uint32_t lkey() const { return region_->lkey; }
  uint32_t rkey() const { return region_->rkey; }
  char* address() const { return address_; }
  uint64_t iova() const { return iova_; }
  // Add this to a local address to get the address that the card knows.
  uint64_t shift() const { return iova_ - reinterpret_cast<uint64_t>(address()); }
  size_t length() const { return region_->length; }

 private:
  friend class Adapter;
  Registration(class Adapter* adapter, ibv_mr* region, void* address, uint64_t iova)
      : adapter_(adapter), region_(region), address_(static_cast<char*>(address)), iova_(iova) {}

  class Adapter* const adapter_;
  ibv_mr* const region_;
  char* const address_;  // `region_` does not know that of a DMA-BUF
  const uint64_t iova_;
  size_t locked_ = 0;  // bytes that count against the limit on locked memory
};

// An opened port. Thread-safe. It must outlive everything created from it.
class Adapter {
 public:
  // Takes ownership of the context of `port`, also if it fails.
  static Status Open(const VerbsSettings& settings, std::shared_ptr<const Library> library,
                     Port port, std::unique_ptr<Adapter>* adapter);
  ~Adapter();
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  const Library& library() const { return *library_; }
  // The result stays valid, and is replaced by Reread().
  const Port& port() const { return *port_.load(); }
  // Reads again what may change while the port is open, or was not known. Returns an error, and
  // changes nothing, if it cannot be used now. Polling thread only.
  Status Reread();
  const VerbsSettings& settings() const { return settings_; }
  ibv_pd* domain() const { return domain_; }
  // Returns whether the port was active when it was last looked at.
  bool active() const { return active_.load(); }
  void set_active(bool active) { active_.store(active && !dead()); }
  // The card has died. It does nothing any more until the process opens it again.
  void Kill() {
    dead_.store(true);
    active_.store(false);
  }
  bool dead() const { return dead_.load(); }
  // A channel through this port has failed.
  void NoteFailure() { failures_.fetch_add(1); }
  uint64_t failures() const { return failures_.load(); }
  // Returns false in a process that was forked from the one that opened the adapter.
  bool Usable() const;
  // "mlx5_0:1"
  std::string Name() const { return port().device + ":" + std::to_string(port().number); }

  // Registers memory for operations of this side only. `access` is a set of flags of ibv_reg_mr().
  Status Register(void* address, size_t length, int access,
                  std::unique_ptr<Registration>* registration);
  // Registers memory for peers. If the settings and the card allow it, its iova is one that peers
  // cannot guess.
  Status Expose(void* address, size_t length, int access,
                std::shared_ptr<Registration>* registration);

  // The same for memory of an accelerator. Returns Unimplemented if libibverbs is too old.
  Status Expose(const DeviceMemory& memory, int access,
                std::shared_ptr<Registration>* registration);

  // Charges locked memory of peers that have requested a channel and not connected yet. Returns
  // false if that exceeds the limit. A negative number undoes a charge.
  bool ChargePending(int64_t bytes);

  // Bytes that this process has moved through the port. QueuePair counts them when it posts.
  struct Traffic {
    uint64_t written = 0;
    uint64_t read = 0;
  };
  void Count(const Traffic& moved) {
    written_.fetch_add(moved.written, std::memory_order_relaxed);
    read_.fetch_add(moved.read, std::memory_order_relaxed);
  }
  Traffic traffic() const { return {written_.load(), read_.load()}; }

  // Counts the queue pairs of this process. QueuePair calls it.
  void CountQueuePair() { queue_pairs_.fetch_add(1); }
  // Ends all access by a counted queue pair, and destroys it without the caller, which may be the
  // thread that polls. Then its `reserved` entries of `queue` are released.
  void Dispose(ibv_qp* pair, CompletionQueue* queue, int reserved);
  int queue_pairs() const { return queue_pairs_.load(); }

  // Finds or creates a completion queue with room for `entries` more. The caller must Release()
  // them. Returns InvalidArgument if the device does not support so many.
  Status ReserveCompletions(int entries, CompletionQueue** queue);
  // Returns all completion queues. Polling thread only. The list never shrinks.
  const std::vector<CompletionQueue*>& Queues();

  int completion_events() const { return events_->fd; }
  int async_events() const { return port().context->async_fd; }
  // Consumes all pending completion events.
  void DrainCompletionEvents();
  // Returns false if no event is pending.
  bool NextAsyncEvent(ibv_async_event* event);

 private:
  friend class Registration;
  Adapter() = default;
  Status Init();
  Status RegistrationFailed(int error, size_t length) const;
  void Destroy(ibv_qp* pair, CompletionQueue* queue, int reserved);
  ibv_mr* RegisterAt(uint64_t iova, void* address, size_t length, int access, bool relaxed);
  // Returns false with errno. `register_at` returns null with errno.
  bool ExposeBy(const std::function<ibv_mr*(uint64_t iova, int access)>& register_at, void* address,
                int access, std::shared_ptr<Registration>* registration);

  int generation_ = 0;
  VerbsSettings settings_;
  std::shared_ptr<const Library> library_;
  std::vector<std::unique_ptr<const Port>> known_;
  std::atomic<const Port*> port_{nullptr};
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* events_ = nullptr;
  std::atomic<bool> active_{true};
  std::atomic<bool> dead_{false};
  std::atomic<uint64_t> failures_{0};
  std::atomic<uint64_t> written_{0};     // bytes
  std::atomic<uint64_t> read_{0};        // bytes
  std::atomic<uint64_t> registered_{0};  // bytes
  std::atomic<int64_t> pending_{0};      // bytes
  std::atomic<int> queue_pairs_{0};
  std::atomic<bool> random_addresses_{false};

  std::mutex queues_mu_;
  std::vector<std::unique_ptr<CompletionQueue>> queues_;
  std::atomic<size_t> queue_count_{0};
  std::vector<CompletionQueue*> known_queues_;  // used only by the polling thread
  host::SlowCalls disposal_{"rdma_disposal"};
};

}  // namespace rdma_transport::fabric::verbs
