#include "protocol/runtime.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/log.h"
#include "fabric/host/memory_file.h"
#include "fabric/registry.h"
#include "protocol/endpoint.h"

namespace rdma_transport {
namespace {

constexpr int kPausesPerYield = 32;
// One thread leads. While it runs deferred work, a second one leads and a third one sleeps.
constexpr int kThreads = 3;
// The largest part of the budget for slots. An edge without slots is dynamic, but a tensor without
// memory is an error.
constexpr double kShareOfSlots = 0.5;
constexpr std::chrono::seconds kStopTimeout(2);
// A follower is woken repeatedly until the leader has handled the event, and the leader may need
// the processor that the follower runs on.
constexpr std::chrono::microseconds kNap(20);

// The longest time that deferred work runs here: about the time to wake another thread.
constexpr Nanos kShortWork = 50 * kMicrosecond;

// Deferred work that a thread runs one item at a time, until one takes long.
struct Batch {
  Runtime* runtime;
  Runtime::Pool* pool;
  std::vector<std::function<void()>> work;
  size_t next = 0;

  void HandOut() {
    while (next < work.size()) pool->Schedule(std::move(work[next++]));
  }
};

// The batch that this thread runs, until it hands polling over.
thread_local Batch* t_batch = nullptr;

// On the leading thread: the work that its deliveries made ready.
thread_local std::vector<std::function<void()>>* t_deferred = nullptr;

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
    const Status listening = g_runtime.load()->status_socket_.Start();
    if (!listening.ok()) Log(LogLevel::kInfo, "no live status: " + listening.message());
  }
  *runtime = g_runtime.load();
  return OkStatus();
}

Runtime* Runtime::IfMade() { return g_runtime.load(); }

Runtime::Runtime(const Settings& settings)
    : settings_(settings),
      secret_file_(settings.secret_file),
      tick_interval_(
          std::clamp(settings.peer_timeout / 16, 10 * kMillisecond, 500 * kMillisecond)) {}

Runtime::~Runtime() { Stop(); }

Status Runtime::Start() {
  std::vector<std::string> secrets;
  RDMA_RETURN_IF_ERROR(secret_file_.Get(&secrets));
  if (settings_.fabric == FabricChoice::kGrpc) {
    no_fabric_reason_ = "RDMA_TRANSPORT_FABRIC=grpc";
    return OkStatus();
  }
  std::unique_ptr<fabric::Device> device;
  const Status opened = fabric::OpenDevice(settings_, &device);
  if (!opened.ok()) {
    if (settings_.fabric != FabricChoice::kAuto) return opened;
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
  running_ = kThreads;
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { Loop(); });
    pthread_setname_np(threads_.back().native_handle(), "rdma_poll");
  }
}

void Runtime::Stop() {
  status_socket_.Stop();
  if (threads_.empty() || stop_.exchange(true)) return;
  // A callback that never returns must not keep the process from ending.
  const auto deadline = std::chrono::steady_clock::now() + kStopTimeout;
  std::unique_lock<std::mutex> lock(mu_);
  while (running_ > 0 && std::chrono::steady_clock::now() < deadline) {
    device_->Wake();
    loop_ended_.wait_for(lock, std::chrono::milliseconds(10), [this] { return running_ == 0; });
  }
  const bool ended = running_ == 0;
  lock.unlock();
  for (std::thread& thread : threads_) {
    if (ended) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  threads_.clear();
}

void Runtime::AddEndpoint(Endpoint* endpoint) {
  std::lock_guard<std::mutex> lock(mu_);
  endpoints_.push_back(endpoint);
}

void Runtime::RemoveEndpoint(Endpoint* endpoint) {
  std::lock_guard<std::mutex> lock(mu_);
  endpoints_.erase(std::remove(endpoints_.begin(), endpoints_.end(), endpoint), endpoints_.end());
  tasks_on_host_.erase(endpoint);
}

std::vector<Endpoint*> Runtime::Endpoints() const {
  std::lock_guard<std::mutex> lock(mu_);
  return endpoints_;
}

void Runtime::ShareMemory(const Endpoint* endpoint, size_t tasks_on_host) {
  if (budget_ == nullptr || settings_.arena_size != 0) return;
  std::lock_guard<std::mutex> lock(mu_);
  tasks_on_host_[endpoint] = tasks_on_host;
  size_t all = tasks_on_host_.size();
  for (const auto& [known, tasks] : tasks_on_host_) all = std::max(all, tasks);
  budget_->SetLimit(whole_budget_ / all * tasks_on_host_.size());
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

bool Runtime::Defer(std::function<void()>* work) {
  if (t_deferred == nullptr) return false;
  t_deferred->push_back(std::move(*work));
  return true;
}

// Requires leadership. Gives it up to run the work here if another thread could poll in the
// meantime. When something takes long, the remaining work goes to the pool. Returns false if there
// was no work.
bool Runtime::RunDeferred(std::unique_lock<std::mutex>* leadership) {
  Batch batch = {this, pool_.load(), std::exchange(*t_deferred, {})};
  t_deferred = nullptr;
  if (batch.work.empty()) return false;
  if (sleepers_.load() == 0) {
    batch.HandOut();
    return true;
  }
  leadership->unlock();
  t_batch = &batch;
  const Nanos begin = Now();
  while (batch.next < batch.work.size()) {
    const std::function<void()> here = std::move(batch.work[batch.next++]);
    batch.pool->RunHere(here);
    if (Now() - begin > kShortWork) batch.HandOut();
  }
  t_batch = nullptr;
  return true;
}

void Runtime::LongWorkAhead() {
  if (t_batch == nullptr) return;
  Batch* batch = std::exchange(t_batch, nullptr);
  batch->HandOut();
  batch->runtime->HandOver();
}

void Runtime::HandOver() {
  const std::unique_lock<std::mutex> leadership(lead_mu_, std::try_to_lock);
  if (!leadership.owns_lock()) return;  // another thread already polls
  if (!device_->ArmNotification() || (armed_.load() && dated_sleepers_.load() == 0))
    device_->Wake();
}

void Runtime::Lead(std::unique_lock<std::mutex> leadership) {
  std::vector<std::function<void()>> deferred;
  Nanos last_work = Now();
  while (!stop_.load(std::memory_order_relaxed)) {
    t_deferred = pool_.load(std::memory_order_relaxed) == nullptr ? nullptr : &deferred;
    const int handled = device_->Poll();
    const bool ran = t_deferred != nullptr && RunDeferred(&leadership);
    t_deferred = nullptr;
    if (ran && !leadership.owns_lock() && !leadership.try_lock()) return;
    const Nanos now = Now();
    // Done under any load: a peer that never pauses must not suspend the timeouts of others.
    if (armed_.load(std::memory_order_relaxed) &&
        now >= next_tick_.load(std::memory_order_relaxed)) {
      Tick(now);
    }
    if (handled > 0) {
      last_work = now;
      continue;
    }
    if (now - last_work < settings_.spin) {
      for (int i = 0; i < kPausesPerYield; ++i) Pause();
      sched_yield();
      continue;
    }
    if (device_->ArmNotification()) return;
  }
}

void Runtime::SleepAsFollower() {
  const bool dated = armed_.load();
  sleepers_.fetch_add(1);
  if (dated) dated_sleepers_.fetch_add(1);
  device_->Sleep(dated ? std::max<Nanos>(next_tick_.load(), 1) : 0);
  if (dated) dated_sleepers_.fetch_sub(1);
  sleepers_.fetch_sub(1);
}

void Runtime::Loop() {
  while (!stop_.load(std::memory_order_relaxed)) {
    SleepAsFollower();
    std::unique_lock<std::mutex> leadership(lead_mu_, std::try_to_lock);
    if (leadership.owns_lock()) {
      Lead(std::move(leadership));
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  --running_;
  loop_ended_.notify_all();
}

}  // namespace rdma_transport
