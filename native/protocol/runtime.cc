#include "protocol/runtime.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "fabric/registry.h"
#include "fabric/shm/memory_file.h"
#include "protocol/endpoint.h"

extern char** environ;

namespace rdma_transport {
namespace {

constexpr int kPausesPerYield = 32;
constexpr std::chrono::seconds kStopPatience(2);

std::mutex g_mu;
std::atomic<Runtime*> g_runtime{nullptr};
pid_t g_owner = 0;

void StopAtExit() {
  Runtime* runtime = Runtime::IfMade();
  if (runtime != nullptr && g_owner == getpid()) runtime->Stop();
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Status Runtime::Get(Runtime** runtime) {
  std::lock_guard<std::mutex> lock(g_mu);
  Settings settings;
  std::vector<std::string> warnings;
  RDMA_RETURN_IF_ERROR(LoadSettings(environ, &settings, &warnings));
  if (g_runtime.load() == nullptr || g_owner != getpid()) {
    SetLogLevel(settings.log_level);
    for (const std::string& warning : warnings) Log(LogLevel::kWarning, warning);
    auto made = std::make_unique<Runtime>(settings);
    RDMA_RETURN_IF_ERROR(made->Start());
    if (g_owner == 0) std::atexit(&StopAtExit);
    g_owner = getpid();
    g_runtime.store(made.release());
  }
  *runtime = g_runtime.load();
  return OkStatus();
}

Runtime* Runtime::IfMade() { return g_runtime.load(); }

Runtime::Runtime(const Settings& settings)
    : settings_(settings),
      tick_interval_(
          std::clamp(settings.peer_timeout / 16, 10 * kMillisecond, 500 * kMillisecond)) {}

Runtime::~Runtime() { Stop(); }

Status Runtime::Start() {
  if (settings_.fabric == FabricChoice::kGrpc) {
    no_fabric_reason_ = "RDMA_TRANSPORT_FABRIC=grpc";
    return OkStatus();
  }
  const Status opened = fabric::OpenDevice(settings_.fabric, &device_);
  if (!opened.ok()) {
    if (settings_.fabric != FabricChoice::kAuto) return opened;
    no_fabric_reason_ = opened.message();
    Log(LogLevel::kWarning, "no fabric: " + opened.message() + "; tensors go by gRPC");
    return OkStatus();
  }
  const uint64_t size =
      settings_.arena_size != 0 ? settings_.arena_size : fabric::shm::TotalMemory() / 4 * 3;
  arena_ = std::make_unique<memory::Arena>(device_.get(), size);
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "rdma_poll");
  return OkStatus();
}

void Runtime::Stop() {
  if (!thread_.joinable() || stop_.exchange(true)) return;
  device_->Wake();
  // A callback that never returns must not keep the process from ending.
  std::unique_lock<std::mutex> lock(mu_);
  const bool ended = loop_ended_.wait_for(lock, kStopPatience, [this] { return ended_; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Runtime::AddEndpoint(Endpoint* endpoint) {
  std::lock_guard<std::mutex> lock(mu_);
  endpoints_.push_back(endpoint);
}

void Runtime::RemoveEndpoint(Endpoint* endpoint) {
  std::lock_guard<std::mutex> lock(mu_);
  endpoints_.erase(std::remove(endpoints_.begin(), endpoints_.end(), endpoint), endpoints_.end());
}

std::vector<Endpoint*> Runtime::Endpoints() const {
  std::lock_guard<std::mutex> lock(mu_);
  return endpoints_;
}

void Runtime::ArmTimer() {
  if (!armed_.load(std::memory_order_relaxed) && !armed_.exchange(true)) device_->Wake();
}

void Runtime::Tick(Nanos now) {
  const bool suspended = last_tick_ != 0 && now - last_tick_ > 4 * tick_interval_ + kSecond;
  armed_.store(false);
  bool busy = false;
  for (Endpoint* endpoint : Endpoints()) busy |= endpoint->Tick(now, suspended);
  if (busy) armed_.store(true);
  last_tick_ = busy ? now : 0;
  next_tick_ = now + tick_interval_;
}

void Runtime::Loop() {
  Nanos last_work = Now();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (device_->Poll() > 0) {
      last_work = Now();
      continue;
    }
    const Nanos now = Now();
    const bool armed = armed_.load();
    if (armed && now >= next_tick_) Tick(now);
    if (now - last_work < settings_.spin) {
      for (int i = 0; i < kPausesPerYield; ++i) Pause();
      sched_yield();
      continue;
    }
    device_->Wait(armed ? std::max(next_tick_, now + 1) : 0);
    last_work = Now();
  }
  std::lock_guard<std::mutex> lock(mu_);
  ended_ = true;
  loop_ended_.notify_all();
}

}  // namespace rdma_transport
