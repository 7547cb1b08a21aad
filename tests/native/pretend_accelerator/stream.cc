#include "stream.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "settings.h"

namespace pretend_accelerator {
namespace {

constexpr int64_t kMiB = 1 << 20;

constexpr int kScribble = 0xa5;

}  // namespace

uint64_t EventState::Record() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ++recorded_;
}

uint64_t EventState::recorded() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return recorded_;
}

void EventState::Reach(uint64_t recording, bool failed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reached_ = std::max(reached_, recording);
  failed_ = failed;
  reached_changed_.notify_all();
}

void EventState::Wait(uint64_t recording) const {
  std::unique_lock<std::mutex> lock(mutex_);
  reached_changed_.wait(lock, [&] { return reached_ >= recording; });
}

bool EventState::Reached() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reached_ == recorded_;
}

bool EventState::failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failed_;
}

void RunLate(const Operation& operation, std::mt19937_64* random) {
  const int64_t most = settings().delay_us;
  int64_t delay = 0;
  if (operation.is_copy) {
    delay = settings().copy_us + settings().mib_us * static_cast<int64_t>(operation.bytes) / kMiB;
  }
  if (most > 0) delay += std::uniform_int_distribution<int64_t>(0, most)(*random);
  if (delay > 0) {
    const auto due = std::chrono::steady_clock::now() + std::chrono::microseconds(delay);
    if (operation.destination != nullptr) {
      std::memset(operation.destination, kScribble, operation.bytes);
    }
    std::this_thread::sleep_until(due);
  }
  operation.run();
}

Stream::Stream(Order* order, uint64_t seed)
    : order_(order), random_(seed), worker_([this] { Work(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Stream::Enqueue(Operation operation) {
  ++counters().pending;
  if (settings().in_order == 0) {
    EnqueueAlways([this, operation = std::move(operation)] { RunUnlessFailed(operation); });
    return;
  }
  const std::lock_guard<std::mutex> lock(order_->mutex);
  const SharedEvent before = std::exchange(order_->last, std::make_shared<EventState>());
  EnqueueAlways([this, operation = std::move(operation), before, done = order_->last] {
    if (before != nullptr) before->Wait(1);
    RunUnlessFailed(operation);
    done->Reach(1, failed());
  });
}

void Stream::RunUnlessFailed(const Operation& operation) {
  if (!failed() && Strikes(&settings().fail_stream, /*lasting=*/false)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failed_ = true;
  }
  if (!failed()) RunLate(operation, &random_);
  --counters().pending;
}

void Stream::EnqueueAlways(std::function<void()> run) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(run));
  }
  changed_.notify_all();
}

void Stream::Record(const SharedEvent& event) {
  EnqueueAlways([this, event, recording = event->Record()] { event->Reach(recording, failed()); });
}

void Stream::WaitFor(const SharedEvent& event) {
  EnqueueAlways([event, recording = event->recorded()] { event->Wait(recording); });
}

void Stream::WaitFor(Stream* other) {
  const auto event = std::make_shared<EventState>();
  other->Record(event);
  WaitFor(event);
}

void Stream::BlockUntilDone() {
  const auto event = std::make_shared<EventState>();
  Record(event);
  event->Wait(1);
}

void Stream::CallBack(std::function<void()> run) { EnqueueAlways(std::move(run)); }

bool Stream::failed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failed_;
}

void Stream::Work() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // nanoseconds: delays are as long as the settings say
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::function<void()> run = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    run();
    lock.lock();
  }
}

Stream* Streams::Create(int ordinal) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto seed = 1 + created_++;
  entries_.push_back({ordinal, std::make_shared<SP_Stream_st>(&orders_[ordinal], seed)});
  return entries_.back().stream.get();
}

void Streams::Destroy(Stream* stream) {
  std::shared_ptr<Stream> last;  // ends without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [stream](const Entry& entry) {
    return entry.stream.get() == stream;
  });
  if (found == entries_.end()) return;
  last = std::move(found->stream);
  entries_.erase(found);
}

void Streams::BlockUntilDone(int ordinal) {
  std::vector<std::shared_ptr<Stream>> of_device;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Entry& entry : entries_) {
      if (entry.ordinal == ordinal) of_device.push_back(entry.stream);
    }
  }
  for (const auto& stream : of_device) stream->BlockUntilDone();
}

Streams& streams() {
  static auto* const made = new Streams;
  return *made;
}

}  // namespace pretend_accelerator
