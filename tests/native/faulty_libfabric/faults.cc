#include "faults.h"

#include <rdma/fi_errno.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>

namespace faulty_libfabric {
namespace {

// Pending requests of fail_next() and lose_next(); the last is for any kind.
using Pending = std::array<int, kKinds + 1>;

struct State {
  std::mutex mutex;
  std::mt19937_64 random{Current()->seed};
  FaultyLibfabricCounters counters = {};
  Clock::time_point eagain_until = Clock::now();
  uint64_t registrations = 0;
  Pending fail = {};
  Pending lose = {};
  bool hold_writes = false;
};

void Restart(State& state, const Settings& settings) {
  state.random.seed(settings.seed);
  state.eagain_until = Clock::now();
  state.registrations = 0;
  state.fail = state.lose = {};
  state.hold_writes = false;
}

State& Get() {
  static State* state = [] {
    auto* made = new State;
    Restart(*made, *Current());
    return made;
  }();
  return *state;
}

bool Take(Pending& pending, Kind kind) {
  for (int at : {static_cast<int>(kind), kKinds}) {
    if (pending[at] > 0) {
      --pending[at];
      return true;
    }
  }
  return false;
}

int Request(Pending State::* pending, const char* kind, bool transmits_only) {
  static constexpr const char* kNames[] = {"send", "write", "read", "receive", "any"};
  for (int at = 0; at <= kKinds; ++at) {
    if (std::strcmp(kind, kNames[at]) != 0) continue;
    if (transmits_only && (at == 2 || at == 3)) return EINVAL;
    State& state = Get();
    const std::lock_guard<std::mutex> lock(state.mutex);
    ++(state.*pending)[at];
    return 0;
  }
  return EINVAL;
}

}  // namespace

void Count(Counter counter, int64_t by) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.counters.*counter += static_cast<uint64_t>(by);
}

uint64_t Counted(Counter counter) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.counters.*counter;
}

uint64_t Random(uint64_t most) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return std::uniform_int_distribution<uint64_t>(0, most)(state.random);
}

uint64_t RandomKey(uint64_t bytes) {
  const uint64_t mask = bytes >= 8 ? UINT64_MAX : (uint64_t{1} << (8 * bytes)) - 1;
  // Processes with the same seed differ, so that a mistaken key is not right by chance.
  static const uint64_t process = static_cast<uint64_t>(getpid()) * 0x9e3779b97f4a7c15;
  return (Random(UINT64_MAX) ^ process) & mask;
}

bool Chance(uint64_t percent) { return percent > 0 && Random(99) < percent; }

bool ShallRefuse(const Settings& settings) {
  State& state = Get();
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (Clock::now() < state.eagain_until) return true;
  }
  return Chance(settings.eagain);
}

bool ShallFail(Kind kind) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return Take(state.fail, kind);
}

bool ShallLose(const Settings& settings, Kind kind) {
  if (kind != Kind::kSend && kind != Kind::kWrite) return false;
  State& state = Get();
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (Take(state.lose, kind)) return true;
  }
  return Chance(settings.lose);
}

bool WritesAreHeld() {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.hold_writes;
}

int Register(const Settings& settings, uint64_t bytes) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  ++state.registrations;
  int error = 0;
  if (settings.mr_fail > 0 && state.registrations >= settings.mr_fail) error = -FI_ENOMEM;
  if (settings.mr_limit > 0 && state.counters.registered_bytes + bytes > settings.mr_limit) {
    error = -FI_ENOSPC;
  }
  if (error != 0) {
    ++state.counters.refused_registrations;
    return error;
  }
  ++state.counters.registrations;
  ++state.counters.regions;
  state.counters.registered_bytes += bytes;
  return 0;
}

void Unregister(uint64_t bytes) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  --state.counters.regions;
  state.counters.registered_bytes -= bytes;
}

}  // namespace faulty_libfabric

using namespace faulty_libfabric;

int faulty_libfabric_set(const char* key, const char* value) {
  if (!Set(key, value)) return EINVAL;
  const auto settings = Current();
  const std::string name = key;
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (name == "seed") state.random.seed(settings->seed);
  if (name == "mr_fail") state.registrations = 0;
  return 0;
}

void faulty_libfabric_reset(void) {
  ResetToEnvironment();
  const auto settings = Current();
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  Restart(state, *settings);
  const FaultyLibfabricCounters old = state.counters;
  state.counters = {};
  for (Counter living :
       {&FaultyLibfabricCounters::fabrics, &FaultyLibfabricCounters::domains,
        &FaultyLibfabricCounters::endpoints, &FaultyLibfabricCounters::completion_queues,
        &FaultyLibfabricCounters::address_vectors, &FaultyLibfabricCounters::regions,
        &FaultyLibfabricCounters::registered_bytes}) {
    state.counters.*living = old.*living;
  }
}

void faulty_libfabric_counters(FaultyLibfabricCounters* counters) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  *counters = state.counters;
}

int faulty_libfabric_fail_next(const char* kind) { return Request(&State::fail, kind, false); }

int faulty_libfabric_lose_next(const char* kind) { return Request(&State::lose, kind, true); }

void faulty_libfabric_hold_writes(int hold) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.hold_writes = hold != 0;
}

void faulty_libfabric_eagain_for(int milliseconds) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.eagain_until = Clock::now() + std::chrono::milliseconds(milliseconds);
}
