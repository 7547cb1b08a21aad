// An opened port: protection domain, registered memory, completion queues, events.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/verbs/library.h"
#include "fabric/verbs/ports.h"

namespace rdma_transport::fabric::verbs {

// Shared by the queue pairs that fit it, so that it can never overrun: each reserves as many
// entries as it can ever have completions.
class CompletionQueue {
 public:
  CompletionQueue(ibv_cq* queue, int capacity) : queue_(queue), capacity_(capacity) {}

  ibv_cq* get() const { return queue_; }
  bool Reserve(int entries);
  // Entries of a queue pair that is gone may still lie in the queue: they are free when it has been
  // emptied once more.
  void Release(int entries) { released_.fetch_add(entries); }
  int TakeReleased() { return released_.exchange(0); }
  void Emptied(int released);

 private:
  ibv_cq* const queue_;
  const int capacity_;
  std::mutex mu_;
  int reserved_ = 0;
  std::atomic<int> released_{0};
};

// Memory that is registered for this process's own use, or for peers. Both ends of an operation
// name it by its iova, which need not be its address here.
class Registration {
 public:
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  uint32_t lkey() const { return region_->lkey; }
  uint32_t rkey() const { return region_->rkey; }
  char* address() const { return static_cast<char*>(region_->addr); }
  uint64_t iova() const { return iova_; }
  // From addresses here to those that the card knows.
  uint64_t shift() const { return iova_ - reinterpret_cast<uint64_t>(address()); }
  size_t length() const { return region_->length; }
  ibv_mr* region() const { return region_; }
  // What a peer's windows over it may allow; 0: peers reach it by its own key.
  int window_access() const { return window_access_; }

 private:
  friend class Adapter;
  Registration(class Adapter* adapter, ibv_mr* region, uint64_t iova)
      : adapter_(adapter), region_(region), iova_(iova) {}

  class Adapter* const adapter_;
  ibv_mr* const region_;
  const uint64_t iova_;
  int window_access_ = 0;
};

// Thread-safe. Outlives everything that was made of it.
class Adapter {
 public:
  static Status Open(const VerbsSettings& settings, std::unique_ptr<Adapter>* adapter);
  ~Adapter();
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  const Library& library() const { return *library_; }
  const Port& port() const { return port_; }
  const VerbsSettings& settings() const { return settings_; }
  ibv_pd* domain() const { return domain_; }
  // False in a process that was forked from the one that opened it.
  bool Usable() const;
  // "mlx5_0:1"
  std::string Name() const { return port_.device + ":" + std::to_string(port_.number); }

  // `access`: flags of ibv_reg_mr().
  // For operations of this side alone.
  Status Register(void* address, size_t length, int access,
                  std::unique_ptr<Registration>* registration);
  // For peers: at an address that they cannot guess, and by windows alone, as far as the settings
  // want it and the card can.
  Status Expose(void* address, size_t length, int access,
                std::shared_ptr<Registration>* registration);
  // Accelerator memory, by its DMA-BUF. Unimplemented where library or device cannot.
  Status RegisterDmaBuf(int descriptor, uint64_t offset, size_t length, int access,
                        std::unique_ptr<Registration>* registration);

  // Locked memory for peers that have asked for a channel and not yet come. False: they have too
  // much already. Taken back with a negative number.
  bool ChargePending(int64_t bytes);

  // A completion queue with room for `entries` more; Release() them at the end.
  Status ReserveCompletions(int entries, CompletionQueue** queue);
  // All there are; for the polling thread. Grows only.
  const std::vector<CompletionQueue*>& Queues();

  int completion_events() const { return events_->fd; }
  int async_events() const { return port_.context->async_fd; }
  // Takes the events that are there.
  void DrainCompletionEvents();
  // False: none is there.
  bool NextAsyncEvent(ibv_async_event* event);

 private:
  friend class Registration;
  Adapter() = default;
  Status Init(const VerbsSettings& settings);
  void DecideIsolation();
  int WindowAccess(size_t length, int access);
  ibv_mr* RegisterAt(uint64_t iova, void* address, size_t length, int access);

  int generation_ = 0;
  VerbsSettings settings_;
  std::shared_ptr<const Library> library_;
  Port port_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* events_ = nullptr;
  std::atomic<uint64_t> registered_{0};  // bytes
  std::atomic<int64_t> pending_{0};      // bytes
  std::atomic<bool> random_addresses_{false};
  std::atomic<bool> told_of_long_region_{false};
  bool windows_ = false;

  std::mutex queues_mu_;
  std::vector<std::unique_ptr<CompletionQueue>> queues_;
  std::atomic<size_t> queue_count_{0};
  std::vector<CompletionQueue*> known_queues_;  // the polling thread's
};

}  // namespace rdma_transport::fabric::verbs
