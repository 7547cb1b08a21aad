#include "faulty_fabric/faults.h"

#include <utility>

namespace rdma_transport::testing {
namespace {

constexpr int kFaults = static_cast<int>(Fault::kCount);
constexpr const char* kNames[kFaults] = {
    "open",     "allocate",  "connect", "share", "map",        "notify",  "read",       "write",
    "read end", "write end", "break",   "late",  "short poll", "wake-up", "place late", "stall"};

// As real fabrics would say it.
Status Wrong(Fault fault) {
  switch (fault) {
    case Fault::kOpen:
    case Fault::kAllocate:
    case Fault::kShare:
    case Fault::kWrite:
      return Status(Code::kResourceExhausted, "injected: no memory can be registered");
    case Fault::kNotify:
      return Status(Code::kResourceExhausted, "injected: the peer does not take its notifications");
    case Fault::kConnect:
      return Status(Code::kResourceExhausted, "injected: no memory for the ends of a channel");
    case Fault::kRead:
      return Status(Code::kUnavailable, "injected: the channel is not connected");
    case Fault::kReadEnd:
      return Status(Code::kInvalidArgument, "injected: a read outside the peer's memory");
    default:
      return Status(Code::kUnavailable, "injected: the link broke");
  }
}

uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

struct Kept {
  std::mutex mu;
  std::vector<std::string> all;
};

Kept& KeptViolations() {
  static auto* kept = new Kept;
  return *kept;
}

}  // namespace

bool Dice::Roll(Fault fault, Status* status) {
  const int index = static_cast<int>(fault);
  const uint64_t nth = calls_[index].fetch_add(1, std::memory_order_relaxed);
  if (ordered_count_[index].load() > 0) {
    std::lock_guard<std::mutex> lock(mu_);
    std::deque<Ordered>& orders = ordered_[index];
    if (!orders.empty() && orders.front().skip-- == 0) {
      if (status != nullptr) *status = orders.front().status;
      orders.pop_front();
      ordered_count_[index].fetch_sub(1);
      wrong_[index].fetch_add(1);
      return true;
    }
  }
  const int chance = faults_.chances[index];
  if (chance == 0 || calm_.load(std::memory_order_relaxed)) return false;
  const uint64_t value = Mix(Mix(faults_.seed * kFaults + index) + nth);
  if (value % 10000 >= static_cast<uint64_t>(chance)) return false;
  wrong_[index].fetch_add(1, std::memory_order_relaxed);
  if (status != nullptr) *status = Wrong(fault);
  return true;
}

uint64_t Dice::Draw(uint64_t bound) {
  const uint64_t nth = draws_.fetch_add(1, std::memory_order_relaxed);
  return bound == 0 ? 0 : Mix(Mix(~faults_.seed) + nth) % bound;
}

void Dice::Order(Fault fault, int skip, const Status& status) {
  const int index = static_cast<int>(fault);
  std::lock_guard<std::mutex> lock(mu_);
  ordered_[index].push_back({skip, status});
  ordered_count_[index].fetch_add(1);
}

std::string Dice::Summary() const {
  std::string summary;
  for (int i = 0; i < kFaults; ++i) {
    if (wrong_[i].load() == 0) continue;
    summary += std::string(summary.empty() ? "" : ", ") + kNames[i] + " " +
               std::to_string(wrong_[i].load()) + "/" + std::to_string(calls_[i].load());
  }
  return summary.empty() ? "nothing" : summary;
}

void Violations::Add(const std::string& what) {
  Kept& kept = KeptViolations();
  std::lock_guard<std::mutex> lock(kept.mu);
  if (kept.all.size() < 20) kept.all.push_back(what);
}

std::vector<std::string> Violations::Take() {
  Kept& kept = KeptViolations();
  std::lock_guard<std::mutex> lock(kept.mu);
  return std::exchange(kept.all, {});
}

}  // namespace rdma_transport::testing
