#include "protocol/runtime.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fabric/host/memory_file.h"
#include "fabric/registry.h"

namespace rdma_transport {
namespace {

// The largest part of the budget for slots. An edge without slots is dynamic, but a tensor without
// memory is an error.
constexpr double kShareOfSlots = 0.5;

}  // namespace

Runtime::Runtime(const Settings& settings)
    : settings_(settings), secret_file_(settings.secret_file) {}

Status Runtime::Start() {
  std::vector<std::string> secrets;
  RDMA_RETURN_IF_ERROR(secret_file_.Get(&secrets));
  if (settings_.fabric == kNoFabric) {
    no_fabric_reason_ = "RDMA_TRANSPORT_FABRIC=grpc";
    return OkStatus();
  }
  std::unique_ptr<fabric::Device> device;
  const Status opened = fabric::OpenDevice(settings_, &device);
  if (!opened.ok()) {
    if (settings_.fabric != kAutoFabric) return opened;
    no_fabric_reason_ = opened.message();
    Log(LogLevel::kWarning, "no fabric: " + opened.message() + "; tensors fall back to gRPC");
    return OkStatus();
  }
  StartOn(std::move(device));
  return OkStatus();
}

void Runtime::StartOn(std::unique_ptr<fabric::Device> device) {
  device_ = std::move(device);
  whole_budget_ =
      settings_.arena_size != 0 ? settings_.arena_size : fabric::host::TotalMemory() / 4 * 3;
  budget_ = std::make_shared<memory::Budget>(whole_budget_);
  arena_ = std::make_unique<memory::Arena>(device_.get(), budget_);
  slots_ = std::make_unique<memory::SlotPools>(arena_.get());
  receive_arena_ = std::make_unique<memory::Arena>(device_.get(), budget_,
                                                   fabric::Access::kRemoteReadWrite, kShareOfSlots);
  arena_->SetNeighbor(receive_arena_.get());
  receive_arena_->SetNeighbor(arena_.get());
  trimmer_ = std::make_unique<memory::Trimmer>(slots_.get(), arena_.get(), receive_arena_.get(),
                                               [this] { ArmTimer(); });
  poller_ = std::make_unique<Poller>(
      device_.get(), settings_, [this](Nanos now, bool suspended) { return Tick(now, suspended); });
}

void Runtime::OpenDirect(std::unique_ptr<memory::DeviceExporter> exporter) {
  std::lock_guard<std::mutex> lock(mu_);
  if (owned_direct_ != nullptr) return;
  owned_direct_ = std::make_unique<memory::DirectMemory>(device_.get(), std::move(exporter));
  direct_.store(owned_direct_.get());
}

void Runtime::Stop() {
  if (poller_ != nullptr) poller_->Stop();
}

void Runtime::SetPool(Poller::Pool* pool) {
  if (poller_ != nullptr) poller_->SetPool(pool);
}

void Runtime::Add(LocalTask* task) {
  std::lock_guard<std::mutex> lock(mu_);
  tasks_.push_back(task);
}

void Runtime::Remove(LocalTask* task) {
  std::lock_guard<std::mutex> lock(mu_);
  tasks_.erase(std::remove(tasks_.begin(), tasks_.end(), task), tasks_.end());
  tasks_on_host_.erase(task);
}

std::vector<LocalTask*> Runtime::Tasks() const {
  std::lock_guard<std::mutex> lock(mu_);
  return tasks_;
}

void Runtime::ShareMemory(const LocalTask* task, size_t tasks_on_host) {
  if (budget_ == nullptr || settings_.arena_size != 0) return;
  std::lock_guard<std::mutex> lock(mu_);
  tasks_on_host_[task] = tasks_on_host;
  size_t all = tasks_on_host_.size();
  for (const auto& [known, tasks] : tasks_on_host_) all = std::max(all, tasks);
  budget_->SetLimit(whole_budget_ / all * tasks_on_host_.size());
}

bool Runtime::Tick(Nanos now, bool suspended) {
  // Memory is returned on another thread: a card may take long to let go of it.
  bool busy = trimmer_->Tick(
      now, [this](memory::Trimmer::Work work) { poller_->Schedule(std::move(work)); });
  for (LocalTask* task : Tasks()) busy |= task->Tick(now, suspended);
  return busy;
}

}  // namespace rdma_transport
