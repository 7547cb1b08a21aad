// Decides which post, completion or registration a fault strikes, and counts what struck.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "control.h"
#include "settings.h"

namespace faulty_libfabric {

using Clock = std::chrono::steady_clock;

enum class Kind { kSend, kWrite, kRead, kReceive };
constexpr int kKinds = 4;

using Counter = uint64_t FaultyLibfabricCounters::*;
void Count(Counter counter, int64_t by = 1);
uint64_t Counted(Counter counter);

// From 0 to `most`.
uint64_t Random(uint64_t most);
uint64_t RandomKey(uint64_t bytes);
bool Chance(uint64_t percent);

bool ShallRefuse(const Settings& settings);
// These are asked once for each accepted post.
bool ShallFail(Kind kind);
bool ShallLose(const Settings& settings, Kind kind);
bool WritesAreHeld();

// A registration of `bytes`: 0, or the error. It counts what is registered until Unregister().
int Register(const Settings& settings, uint64_t bytes);
void Unregister(uint64_t bytes);

}  // namespace faulty_libfabric
