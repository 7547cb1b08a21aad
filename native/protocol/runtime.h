// What the endpoints of one process share: the fabric device, the arena, the polling thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"

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
  void Stop();

  const Settings& settings() const { return settings_; }
  fabric::Device* device() const { return device_.get(); }
  memory::Arena* arena() const { return arena_.get(); }
  const std::string& no_fabric_reason() const { return no_fabric_reason_; }

  void AddEndpoint(Endpoint* endpoint);
  void RemoveEndpoint(Endpoint* endpoint);
  std::vector<Endpoint*> Endpoints() const;

  // Sees to it that Endpoint::Tick() runs regularly until it finds nothing to look after.
  void ArmTimer();

 private:
  void Loop();
  void Tick(Nanos now);

  const Settings settings_;
  const Nanos tick_interval_;
  std::unique_ptr<fabric::Device> device_;
  std::unique_ptr<memory::Arena> arena_;
  std::string no_fabric_reason_;

  std::atomic<bool> stop_{false};
  std::atomic<bool> armed_{false};
  Nanos next_tick_ = 0;
  Nanos last_tick_ = 0;
  std::thread thread_;

  mutable std::mutex mu_;
  std::condition_variable loop_ended_;
  bool ended_ = false;
  std::vector<Endpoint*> endpoints_;
};

}  // namespace rdma_transport
