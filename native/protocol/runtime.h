// What the tasks of a process share: the fabric device, the arenas, the polling threads.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/secret_file.h"
#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"
#include "memory/direct_memory.h"
#include "memory/slot_pools.h"
#include "memory/trimmer.h"
#include "protocol/poller.h"
#include "protocol/task_report.h"

namespace rdma_transport {

// A task of this process, as its runtime knows it.
class LocalTask {
 public:
  virtual ~LocalTask() = default;
  // See Poller::TickFunction.
  virtual bool Tick(Nanos now, bool suspended) = 0;
  // Thread-safe.
  virtual TaskReport Report() const = 0;
};

// Thread-safe, except Start(), StartOn() and Stop().
class Runtime {
 public:
  explicit Runtime(const Settings& settings);
  ~Runtime() { Stop(); }

  // Opens the fabric and starts polling. If the fabric cannot be opened, returns an error if the
  // settings name it, and otherwise works without one.
  Status Start();
  // Starts with a device that is already open.
  void StartOn(std::unique_ptr<fabric::Device> device);
  // Stops polling; see Poller::Stop().
  void Stop();

  const Settings& settings() const { return settings_; }
  // The next five are null if there is no fabric; see no_fabric_reason().
  fabric::Device* device() const { return device_.get(); }
  memory::Arena* arena() const { return arena_.get(); }
  memory::SlotPools* slots() const { return slots_.get(); }
  memory::Arena* receive_arena() const { return receive_arena_.get(); }
  memory::Trimmer* trimmer() const { return trimmer_.get(); }
  // Registrations of accelerators' memory; null if cards do not access it.
  memory::DirectMemory* direct() const { return direct_.load(); }
  // Makes cards access memory that `exporter` exports. Only the first call has an effect. Requires
  // a fabric.
  void OpenDirect(std::unique_ptr<memory::DeviceExporter> exporter);
  const std::string& no_fabric_reason() const { return no_fabric_reason_; }
  SecretFile* secret_file() { return &secret_file_; }

  // `task` must be removed before it is destroyed.
  void Add(LocalTask* task);
  void Remove(LocalTask* task);
  std::vector<LocalTask*> Tasks() const;

  // Sets how many tasks of this task's cluster, including itself, are on this host. With
  // ARENA_SIZE=auto, all of them get an equal share of its memory.
  void ShareMemory(const LocalTask* task, size_t tasks_on_host);

  // Makes LocalTask::Tick() run regularly until it returns false. Requires a fabric.
  void ArmTimer() { poller_->ArmTimer(); }
  // See Poller::SetPool(). Does nothing without a fabric.
  void SetPool(Poller::Pool* pool);

 private:
  bool Tick(Nanos now, bool suspended);

  const Settings settings_;
  SecretFile secret_file_;
  std::unique_ptr<fabric::Device> device_;
  uint64_t whole_budget_ = 0;  // for all tasks on this host
  std::shared_ptr<memory::Budget> budget_;
  std::unique_ptr<memory::Arena> arena_;
  std::unique_ptr<memory::SlotPools> slots_;
  std::unique_ptr<memory::Arena> receive_arena_;        // slots that peers write into
  std::unique_ptr<memory::Trimmer> trimmer_;            // of all of these
  std::unique_ptr<memory::DirectMemory> owned_direct_;  // guarded by mu_
  std::atomic<memory::DirectMemory*> direct_{nullptr};
  std::string no_fabric_reason_;

  mutable std::mutex mu_;
  std::vector<LocalTask*> tasks_;
  std::map<const LocalTask*, size_t> tasks_on_host_;

  std::unique_ptr<Poller> poller_;  // destroyed first: its threads use all of the above
};

}  // namespace rdma_transport
