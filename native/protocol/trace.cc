#include "protocol/trace.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"

namespace rdma_transport {
namespace {

// The end of a key distinguishes edges; its beginning names the two devices.
constexpr size_t kKeptOfKey = 112;

enum class EventKind : uint8_t { kSent = 0, kReleased, kArrived, kHandedOver };

struct Event {
  Nanos begin;
  Nanos end;
  PeerId peer;      // null for kHandedOver
  uint64_t handle;  // the same in both events of a pair
  int64_t step;
  uint64_t bytes;
  EventKind kind;
  Mode mode;
  uint8_t key_length;
  char key[kKeptOfKey];
};

struct FreeMemory {
  void operator()(Event* events) const { std::free(events); }
};

std::mutex g_trace_mu;                          // for Start() and StopJson()
std::unique_ptr<Event[], FreeMemory> g_events;  // each entry is written once
uint64_t g_room = 0;
uint64_t g_arrivals = 0;  // handles above it are from this recording
Nanos g_began = 0;
std::atomic<uint64_t> g_taken{0};
std::atomic<int> g_writers{0};

// An entry for one event, which is not read or freed while this lives. Null if recording is off or
// full.
class Place {
 public:
  explicit Place(const std::atomic<bool>& on) {
    g_writers.fetch_add(1);
    if (!on.load())
      return;  // after the line above, so that StopJson() waits for threads that see it on
    const uint64_t number = g_taken.fetch_add(1, std::memory_order_relaxed);
    if (number < g_room) event_ = &g_events[number];
  }
  ~Place() { g_writers.fetch_sub(1); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Event* operator->() const { return event_; }
  explicit operator bool() const { return event_ != nullptr; }
  uint64_t number() const { return static_cast<uint64_t>(event_ - g_events.get()); }

  void SetKey(std::string_view key, std::string_view suffix) const {
    suffix = suffix.substr(suffix.size() - std::min(suffix.size(), kKeptOfKey));
    key = key.substr(key.size() - std::min(key.size(), kKeptOfKey - suffix.size()));
    std::copy(key.begin(), key.end(), event_->key);
    std::copy(suffix.begin(), suffix.end(), event_->key + key.size());
    event_->key_length = static_cast<uint8_t>(key.size() + suffix.size());
  }

 private:
  Event* event_ = nullptr;
};

// Numbers objects in the order in which they are first seen.
template <typename Thing>
class Numbering {
 public:
  size_t Of(const Thing& thing) {
    const auto [entry, added] = numbers_.try_emplace(thing, numbers_.size());
    if (added) order_.push_back(thing);
    return entry->second;
  }
  const std::vector<Thing>& order() const { return order_; }

 private:
  std::map<Thing, size_t> numbers_;
  std::vector<Thing> order_;
};

std::string RowOf(const Event& event, Numbering<PeerId>* peers, Numbering<std::string>* keys) {
  const size_t peer = event.peer == nullptr ? 0 : peers->Of(event.peer);
  const size_t key = keys->Of(std::string(event.key, event.key_length));
  std::string row = "[" + std::to_string(static_cast<int>(event.kind));
  for (const std::string& number :
       {std::to_string(event.begin), std::to_string(event.end), std::to_string(peer),
        std::to_string(event.handle), std::to_string(event.step), std::to_string(event.bytes),
        Quote(ModeName(event.mode)), std::to_string(key)}) {
    row += ", " + number;
  }
  return row + "]";
}

// Requires g_trace_mu. No thread writes events after it returns.
void SwitchOff(std::atomic<bool>* on) {
  on->store(false);
  while (g_writers.load() > 0) std::this_thread::yield();
}

}  // namespace

std::atomic<bool> Trace::on_{false};

Status Trace::Start(uint64_t max_events) {
  std::lock_guard<std::mutex> lock(g_trace_mu);
  if (on_.load())
    return Status(Code::kFailedPrecondition, "another client is recording a timeline");
  g_room = std::clamp<uint64_t>(max_events, 1, kMaxEvents);
  // Pages are allocated when they are first written.
  g_events.reset(static_cast<Event*>(std::calloc(g_room, sizeof(Event))));
  if (g_events == nullptr) return Status(Code::kResourceExhausted, "no memory for a timeline");
  g_arrivals += g_taken.exchange(0);
  g_began = Now();
  on_.store(true);
  return OkStatus();
}

PeerId Trace::Ends(const std::string& local, const std::string& remote) {
  static std::mutex mu;
  static auto* const known = new std::map<std::pair<std::string, std::string>, TaskPair>;
  std::lock_guard<std::mutex> lock(mu);
  return &known->try_emplace(std::pair(local, remote), TaskPair{local, remote}).first->second;
}

void Trace::Stop() {
  std::lock_guard<std::mutex> lock(g_trace_mu);
  SwitchOff(&on_);
  g_events.reset();
}

std::string Trace::StopJson() {
  std::lock_guard<std::mutex> lock(g_trace_mu);
  SwitchOff(&on_);
  const uint64_t taken = g_taken.load();
  const uint64_t kept = g_events == nullptr ? 0 : std::min(taken, g_room);
  Numbering<PeerId> met;
  Numbering<std::string> names;
  Json events('[');
  for (uint64_t i = 0; i < kept; ++i) events.Add(RowOf(g_events[i], &met, &names));
  g_events.reset();
  const auto ends = [](PeerId peer) {
    return Json('{').Text("local", peer->local).Text("remote", peer->remote).End();
  };
  return Json('{')
      .Count("began", g_began)
      .Count("ended", Now())
      .Count("dropped", taken - kept)
      .Field("peers", JsonArray(met.order(), ends))
      .Field("keys", JsonArray(names.order(), Quote))
      .Field("events", events.End())
      .End();
}

void Trace::Sent(PeerId peer, Nanos begin, int64_t step, std::string_view key, uint64_t bytes,
                 Mode mode, uint64_t handle) {
  const Place event(on_);
  if (!event) return;
  event->begin = begin;
  event->end = Now();
  event->peer = peer;
  event->handle = handle;
  event->step = step;
  event->bytes = bytes;
  event->kind = EventKind::kSent;
  event->mode = mode;
  event.SetKey(key, {});
}

void Trace::Released(PeerId peer, uint64_t handle) {
  if (!On()) return;
  const Place event(on_);
  if (!event) return;
  event->begin = event->end = Now();
  event->peer = peer;
  event->handle = handle;
  event->kind = EventKind::kReleased;
}

uint64_t Trace::Arrived(PeerId peer, Nanos begin, int64_t step, std::string_view key,
                        std::string_view suffix, uint64_t bytes, Mode mode) {
  const Place event(on_);
  if (!event) return 0;
  event->begin = begin;
  event->end = Now();
  event->peer = peer;
  event->handle = g_arrivals + event.number() + 1;
  event->step = step;
  event->bytes = bytes;
  event->kind = EventKind::kArrived;
  event->mode = mode;
  event.SetKey(key, suffix);
  return event->handle;
}

void Trace::HandedOver(uint64_t arrival) {
  if (arrival == 0 || !On()) return;
  const Place event(on_);
  if (!event) return;
  event->begin = event->end = Now();
  event->handle = arrival;
  event->kind = EventKind::kHandedOver;
}

}  // namespace rdma_transport
