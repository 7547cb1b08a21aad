// What goes wrong, and when: from a seed and probabilities, or by order.
//
// The nth call of a kind on a device goes wrong or does not, by the seed alone; which thread makes
// the nth call is the scheduler's to say. A test with one thread at a time is thus repeated
// exactly.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::testing {

enum class Fault : int {
  kOpen = 0,   // Device::Open() is refused
  kAllocate,   // Device::Allocate() and Adopt()
  kConnect,    // Channel::Connect()
  kShare,      // Channel::Share(), for want of something
  kMap,        // Channel::Map() and Device::MapOwn() show nothing
  kNotify,     // Channel::Notify(), because too much waits
  kRead,       // at once
  kWrite,      // at once
  kReadEnd,    // under way
  kWriteEnd,   // under way, which breaks the channel
  kBreak,      // the channel breaks about now; looked at with each operation
  kLate,       // what has come is told some polls later
  kShortPoll,  // Poll() hands out one thing only
  kWakeUp,     // Sleep() returns for nothing
  kPlaceLate,  // as a card: a write ends, and its bytes come with the next notification or read
  kStall,      // Poll() returns late, as in a process that was stopped: no timer runs either
  kCount,
};

struct Faults {
  uint64_t seed = 0;
  // Behaves like a card: maps and copies nothing, reads and writes when Poll() comes by, and loses
  // what was on its way when it breaks. What it stands on must copy.
  bool card = false;
  int most_late = 20;  // polls
  fabric::Pace pace;
  Nanos longest_stall = 0;
  int most_stalls = 0;                                            // over a device's life
  std::array<int, static_cast<int>(Fault::kCount)> chances = {};  // of 10000

  int& chance(Fault fault) { return chances[static_cast<int>(fault)]; }
};

// Thread-safe.
class Dice {
 public:
  explicit Dice(const Faults& faults) : faults_(faults) {}

  // Whether this time it goes wrong, and how.
  bool Roll(Fault fault, Status* status = nullptr);
  uint64_t Draw(uint64_t bound);

  // The next time after `skip` times it goes wrong with `status`, whatever the chances are.
  void Order(Fault fault, int skip, const Status& status);
  void Calm() { calm_.store(true); }
  const Faults& faults() const { return faults_; }
  std::string Summary() const;

 private:
  struct Ordered {
    int skip;
    Status status;
  };

  const Faults faults_;
  std::atomic<bool> calm_{false};
  std::atomic<uint64_t> draws_{0};
  std::array<std::atomic<uint64_t>, static_cast<int>(Fault::kCount)> calls_ = {};
  std::array<std::atomic<uint64_t>, static_cast<int>(Fault::kCount)> wrong_ = {};
  std::array<std::atomic<int>, static_cast<int>(Fault::kCount)> ordered_count_ = {};
  std::mutex mu_;
  std::array<std::deque<Ordered>, static_cast<int>(Fault::kCount)> ordered_;
};

// What fabric.h promises and did not happen, or demands and was not done, in this process.
class Violations {
 public:
  static void Add(const std::string& what);
  static std::vector<std::string> Take();
};

}  // namespace rdma_transport::testing
