#include "collectives/call_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/quiet_thread.h"

namespace rdma_transport::collectives {
namespace {

Status Closed() { return Status(Code::kCancelled, "the communicator was closed"); }

}  // namespace

bool Request::done() const {
  std::lock_guard<std::mutex> lock(mu_);
  return done_;
}

Status Request::Wait(const Patience& patience, bool* waits) const {
  *waits = false;
  std::unique_lock<std::mutex> lock(mu_);
  while (!done_) {
    const Nanos now = Now();
    if (now >= patience.deadline) {
      *waits = true;
      return Status(Code::kDeadlineExceeded, "the collective has not ended");
    }
    const Nanos until = std::min(patience.deadline, now + kCheckInterval);
    ended_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until)));
    if (done_ || patience.interrupted == nullptr) continue;
    lock.unlock();
    const bool interrupted = patience.interrupted();
    lock.lock();
    if (interrupted && !done_) {
      *waits = true;
      return Status(Code::kCancelled, "interrupted");
    }
  }
  return status_;
}

void Request::End(const Status& status) {
  std::lock_guard<std::mutex> lock(mu_);
  done_ = true;
  status_ = status;
  ended_.notify_all();
}

void CallQueue::Close(const std::string& reason) {
  if (group_ == nullptr) return;
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
    changed_.notify_all();
  }
  // The running collective ends, because its members are lost now.
  group_->mesh()->Close(reason);
  if (thread_.joinable()) thread_.join();
}

Status CallQueue::Run(const Call& call, const Patience& patience) {
  {
    std::unique_lock<std::mutex> lock(mu_);
    if (pending_.empty()) {
      lock.unlock();
      return group_->Run(call, patience);
    }
  }
  bool waits = false;
  const auto request = Start(call, patience.deadline);
  // The arrays are in use until the collective has ended, so an interruption has to end it first.
  const Status status = request->Wait({INT64_MAX, patience.interrupted}, &waits);
  if (!waits) return status;
  group_->mesh()->Close(status.message());
  request->Wait({}, &waits).IgnoreError();
  return status;
}

std::shared_ptr<Request> CallQueue::Start(const Call& call, Nanos deadline) {
  auto request = std::make_shared<Request>();
  std::lock_guard<std::mutex> lock(mu_);
  if (stop_) {
    request->End(Closed());
    return request;
  }
  pending_.push_back({call, deadline, request});
  changed_.notify_all();
  if (!thread_.joinable()) {
    thread_ = QuietThread("rdma_collective", [this] { Loop(); });
  }
  return request;
}

void CallQueue::Loop() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !pending_.empty(); });
    if (pending_.empty()) return;
    const Pending next = pending_.front();
    const bool stop = stop_;
    lock.unlock();
    const Status status = stop ? Closed() : group_->Run(next.call, {next.deadline, nullptr});
    lock.lock();
    pending_.pop_front();
    next.request->End(status);
  }
}

}  // namespace rdma_transport::collectives
