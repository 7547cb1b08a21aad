// Streams, which carry out what is enqueued in order and late, and events.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace pretend_accelerator {

// How often an event was recorded and how many of those recordings a stream has reached.
class EventState {
 public:
  uint64_t Record();
  uint64_t recorded() const;
  void Reach(uint64_t recording, bool failed);
  void Wait(uint64_t recording) const;
  bool Reached() const;
  bool failed() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_changed_;
  uint64_t recorded_ = 0;
  uint64_t reached_ = 0;
  bool failed_ = false;
};

using SharedEvent = std::shared_ptr<EventState>;

// A copy or a kernel: what to do, after a delay, and what holds scribbles until then.
struct Operation {
  std::function<void()> run;
  char* destination = nullptr;
  size_t bytes = 0;
  bool is_copy = false;
};

// Waits as long as an operation is delayed, then runs it.
void RunLate(const Operation& operation, std::mt19937_64* random);

// With the setting in_order: what was last enqueued on any stream of a device.
struct Order {
  std::mutex mutex;
  SharedEvent last;
};

class Stream {
 public:
  Stream(Order* order, uint64_t seed);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();  // when everything is carried out

  void Enqueue(Operation operation);
  // Runs in its turn even if the stream is in error.
  void EnqueueAlways(std::function<void()> run);
  // The same for a callback of the host, unless the settings lose it.
  void CallBack(std::function<void()> run);
  void Record(const SharedEvent& event);
  void WaitFor(const SharedEvent& event);
  void WaitFor(Stream* other);
  void BlockUntilDone();
  bool failed() const;

 private:
  void RunUnlessFailed(const Operation& operation);
  void Work();

  Order* const order_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ending_ = false;
  bool failed_ = false;
  std::mt19937_64 random_;
  std::thread worker_;
};

// All streams of a device.
class Streams {
 public:
  Stream* Create(int ordinal);
  void Destroy(Stream* stream);
  void BlockUntilDone(int ordinal);

 private:
  struct Entry {
    int ordinal;
    std::shared_ptr<Stream> stream;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::map<int, Order> orders_;
  uint64_t created_ = 0;
};

Streams& streams();  // lives as long as the process

}  // namespace pretend_accelerator

// TensorFlow's names for them.
struct SP_Stream_st : pretend_accelerator::Stream {
  using Stream::Stream;
};
struct SP_Event_st {
  pretend_accelerator::SharedEvent state;
};
