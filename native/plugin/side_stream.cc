#include "plugin/side_stream.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

// A device in error need not make host callbacks.
constexpr Nanos kOverdue = 500 * kMillisecond;

}  // namespace

// For a host callback.
struct SideStream::Wait {
  Stream* compute;
  Stream* side;
  tsl::core::RefCountPtr<tf::DeviceContext> context;
  tf::Device* device;
  Callback then;
  const Nanos since = Now();
  bool overdue = false;                                // guarded by Thread::mu_, as is `place`
  std::list<std::shared_ptr<Wait>>::iterator place{};  // in Thread::waits_

  void End() {
    absl::Status error = ErrorOfStream(compute);
    if (error.ok()) error = ErrorOfStream(side);
    if (error.ok() || !AskEventManager([then = then, error] { then(error); }).ok()) then(error);
  }
  absl::Status AskEventManager(std::function<void()> function) {
    return context->ThenExecute(device, compute, std::move(function));
  }
};

// Ends the waits of all devices. A host callback itself must do next to nothing: it may not use the
// device, nor wait for a lock whose holder does.
class SideStream::Thread {
 public:
  static Thread& Get() {
    static auto* const thread = new Thread;
    return *thread;
  }

  void Add(const std::shared_ptr<Wait>& wait) {
    bool wake;
    {
      std::lock_guard<std::mutex> lock(mu_);
      waits_.push_back(wait);
      wait->place = std::prev(waits_.end());
      wake = std::exchange(idle_, false);
    }
    if (wake) changed_.notify_one();
  }
  void Remove(const std::shared_ptr<Wait>& wait) {
    std::lock_guard<std::mutex> lock(mu_);
    waits_.erase(wait->place);
  }
  // For host callbacks.
  void Reached(std::shared_ptr<Wait> wait) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      reached_.push_back(std::move(wait));
    }
    changed_.notify_one();
  }

 private:
  Thread() {
    std::thread thread([this] { Run(); });
    pthread_setname_np(thread.native_handle(), "rdma_device");
    thread.detach();
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mu_);
    while (true) {
      if (!reached_.empty()) {
        EndNext(&lock);
      } else if (waits_.empty()) {
        idle_ = true;
        changed_.wait(lock, [this] { return !idle_ || !reached_.empty(); });
        idle_ = false;
      } else {
        changed_.wait_for(lock, std::chrono::nanoseconds(kOverdue));
      }
      if (Now() - looked_ >= kOverdue) ReportOverdue(&lock);
    }
  }

  void EndNext(std::unique_lock<std::mutex>* lock) {
    std::shared_ptr<Wait> wait = std::move(reached_.front());
    reached_.pop_front();
    waits_.erase(wait->place);
    lock->unlock();
    wait->End();
    wait = nullptr;  // releases tensors
    lock->lock();
  }

  // Makes TensorFlow's event manager look at the devices whose callbacks did not come for long.
  void ReportOverdue(std::unique_lock<std::mutex>* lock) {
    std::vector<std::shared_ptr<Wait>> overdue;
    looked_ = Now();
    for (const auto& wait : waits_) {
      if (looked_ - wait->since < kOverdue) break;
      if (!std::exchange(wait->overdue, true)) overdue.push_back(wait);
    }
    lock->unlock();
    for (const auto& wait : overdue) wait->AskEventManager([] {}).IgnoreError();
    overdue.clear();
    lock->lock();
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Wait>> waits_;  // until they end, oldest first
  std::deque<std::shared_ptr<Wait>> reached_;
  bool idle_ = false;  // the thread waits for the first of `waits_`
  Nanos looked_ = 0;   // when the thread last looked for what is overdue
};

SideStream* SideStream::Of(const tf::Device& device, tf::DeviceContext* context) {
  Stream* const compute = ComputeStream(device, context);
  if (compute == nullptr) return nullptr;
  static auto* const mu = new std::mutex;
  static auto* const all = new std::map<Stream*, SideStream*>;
  std::lock_guard<std::mutex> lock(*mu);
  SideStream*& known = (*all)[compute];
  if (known == nullptr) {
    const absl::StatusOr<Stream*> side = compute->GetOrCreateSubStream();
    if (side.ok()) known = new SideStream(compute, *side);
  }
  return known;
}

absl::Status SideStream::CopyToHost(tf::DeviceContext* context, tf::Device* device,
                                    const tf::Tensor& from, const tf::Tensor& to, Callback then) {
  absl::Status status = side_->WaitFor(compute_);
  if (status.ok()) status = EnqueueCopyToHost(side_, from, to);
  return status.ok() ? CallBack(context, device, std::move(then)) : status;
}

absl::Status SideStream::CopyToDevice(tf::DeviceContext* context, tf::Device* device,
                                      const tf::Tensor& from, const tf::Tensor& to, Callback then) {
  const absl::Status enqueued = EnqueueCopyToDevice(compute_, from, to);
  if (!enqueued.ok()) return enqueued;
  if (side_->WaitFor(compute_).ok()) return CallBack(context, device, std::move(then));
  return context->ThenExecute(device, compute_,
                              [then = std::move(then)] { then(absl::OkStatus()); });
}

absl::Status SideStream::CallBack(tf::DeviceContext* context, tf::Device* device, Callback then) {
  // A session's own name for the device may be gone before the callback.
  auto* const named = dynamic_cast<tf::Device*>(device->UnderlyingDevice());
  if (named != nullptr) device = named;
  std::shared_ptr<Wait> wait(
      new Wait{compute_, side_, tsl::core::GetNewRef(context), device, std::move(then)});
  Thread::Get().Add(wait);
  const absl::Status enqueued = side_->DoHostCallbackWithStatus([wait]() mutable {
    Thread::Get().Reached(std::move(wait));
    return absl::OkStatus();
  });
  if (enqueued.ok()) return enqueued;
  Thread::Get().Remove(wait);
  return context->ThenExecute(device, side_, [then = wait->then] { then(absl::OkStatus()); });
}

}  // namespace rdma_transport
