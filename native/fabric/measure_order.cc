// Test::kOrder: what a channel promises of order and visibility, checked at each notification.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "fabric/measure.h"
#include "fabric/pattern.h"

namespace rdma_transport::fabric {
namespace {

constexpr uint64_t kUsualWrite = 256;   // bytes; half of the writes are at most twice as long
constexpr uint64_t kMostPadding = 200;  // bytes of a notification, besides its head
constexpr uint64_t kFirstBytes = 4096;  // checked first, from the end of a write
constexpr uint64_t kWaitedFor = 8;      // notifications whose bytes are looked at again
constexpr auto kWait = std::chrono::milliseconds(20);

enum : uint64_t { kFollowsAll = 1, kLast = 2 };

// Begins each notification. The pattern of `number` follows, and fills the written bytes.
struct OrderHead {
  uint64_t number;
  uint64_t offset;  // of the write in the target; a write of no bytes is none
  uint64_t length;
  uint64_t flags;
};

// Larger regions than this allows for would repeat the pattern of another number.
uint64_t OrderPattern(uint64_t number) { return number << 28; }

uint64_t Scramble(uint64_t* state) {
  *state += 1;
  return PatternWord(*state, 0);
}

// Returns a length of 1 to `most`, such that all orders of magnitude have as many bytes in total.
uint64_t DrawLength(uint64_t* state, uint64_t most) {
  const uint64_t drawn = Scramble(state);
  const uint64_t longest = std::min(most, (kUsualWrite << 32) / ((drawn >> 32) + 1));
  return longest - (drawn & 0xffffffff) % ((longest + 1) / 2);
}

}  // namespace

void Meter::PrepareOrder(bool active) {
  active_ = active;
  ordering_ = !active;  // until the peer is ready, the active side takes plain notifications
  random_ = turn_ << 32;
  writes_ = slots_under_way_ = taken_prefix_ = confirmed_ = 0;
  slot_ends_.fill(0);
  taken_.reset();
  ended_ = false;
  found_ = Found();
  said_[0] = 0;
}

Status Meter::Order(const Plan& plan, Measured* measured) {
  ordering_ = true;
  const Nanos start = Now();
  uint64_t number = 0;
  for (bool last = false; !last; ++number) {
    last = number + 1 >= plan.iterations || (plan.duration > 0 && Now() - start >= plan.duration);
    RDMA_RETURN_IF_ERROR(SendOrdered(plan, number, last));
    if (number % 16 == 0) device_->Poll();
  }
  RDMA_RETURN_IF_ERROR(
      Until(plan.timeout, [&] { return said_bytes_ == sizeof(said_) && slots_under_way_ == 0; }));
  measured->elapsed = Now() - start;
  measured->wrong = said_[1];
  ordering_ = false;
  expected_ = notes_;
  return OkStatus();
}

Status Meter::SendOrdered(const Plan& plan, uint64_t number, bool last) {
  // said_[0]: the peer has taken all notifications before that one.
  RDMA_RETURN_IF_ERROR(Until(plan.timeout, [&] { return number - said_[0] < kOrderWindow; }));
  OrderHead head = {number, 0, 0, last ? kLast | kFollowsAll : Scramble(&random_) & kFollowsAll};
  After after = After::Nothing();
  if (Scramble(&random_) % 4 == 0) {
    const uint64_t room = std::min(largest_, peer_largest_);
    const uint64_t slot = writes_++ % std::min(kSlots, room / plan.bytes);
    RDMA_RETURN_IF_ERROR(Until(plan.timeout, [&] {
      return said_[0] >= slot_ends_[slot] && (slots_under_way_ & uint64_t{1} << slot) == 0;
    }));
    head.offset = slot * plan.bytes;
    head.length = DrawLength(&random_, plan.bytes);
    slot_ends_[slot] = number + 1;
    char* const from = source() + head.offset;
    FillPattern(from, head.length, OrderPattern(number));
    if (peer_region_ != nullptr) {
      RDMA_RETURN_IF_ERROR(peer_region_->Write(from, head.offset, head.length));
    } else {
      slots_under_way_ |= uint64_t{1} << slot;
      RDMA_RETURN_IF_ERROR(
          channel_->Write(from, {peer_key_, head.offset, head.length}, /*cookie=*/slot));
      after = After::Write(slot);
    }
  }
  if ((head.flags & kFollowsAll) != 0) after = After::Everything();
  char note[sizeof(head) + kMostPadding];
  std::memcpy(note, &head, sizeof(head));
  const uint64_t padded = Scramble(&random_) % kMostPadding;
  FillPattern(note + sizeof(head), padded, OrderPattern(number));
  const iovec part = {note, sizeof(head) + padded};
  return channel_->Notify(&part, 1, Urgency::kWake, nullptr, after);
}

Status Meter::TakeOrder(const Plan& plan) {
  while (!ended_) {
    const uint64_t seen = found_.notes;
    const Status waited = Until(plan.timeout, [&] { return found_.notes > seen; });
    if (!waited.ok() && taken_.any()) {
      Fault(&found_.missing,
            "notification " + std::to_string(taken_prefix_) + " did not come, but a later one did");
    }
    RDMA_RETURN_IF_ERROR(waited);
    if (taken_prefix_ == confirmed_) continue;
    confirmed_ = taken_prefix_;
    const iovec part = {&confirmed_, sizeof(confirmed_)};
    RDMA_RETURN_IF_ERROR(channel_->Notify(&part, 1, Urgency::kWake));
  }
  ordering_ = false;
  expected_ = notes_;
  uint64_t result[] = {taken_prefix_, found_.faults()};
  static_assert(sizeof(result) == sizeof(said_));
  const iovec part = {result, sizeof(result)};
  return channel_->Notify(&part, 1, Urgency::kWake);
}

// Called for each notification of the active side, and at the active side for each confirmation.
void Meter::TakeOrdered(const char* data, size_t length) {
  if (active_) return;
  ++found_.notes;
  OrderHead head;
  if (length < sizeof(head)) return Fault(&found_.repeated, "a notification that nobody sent");
  std::memcpy(&head, data, sizeof(head));
  const std::string name = "notification " + std::to_string(head.number);
  if (head.number < taken_prefix_ || head.number >= taken_prefix_ + kOrderWindow ||
      taken_[head.number % kOrderWindow] || head.offset > largest_ ||
      head.length > largest_ - head.offset ||
      DifferingBytes(data + sizeof(head), 0, length - sizeof(head), OrderPattern(head.number)) >
          0) {
    return Fault(&found_.repeated, name + " came twice, or was not sent like this");
  }
  if (head.length > 0) CheckOrdered(head.number, head.offset, head.length);
  if ((head.flags & kFollowsAll) != 0 && head.number != taken_prefix_) {
    Fault(&found_.misordered, name + " came before number " + std::to_string(taken_prefix_));
  }
  taken_.set(head.number % kOrderWindow);
  for (; taken_[taken_prefix_ % kOrderWindow]; ++taken_prefix_) {
    taken_.reset(taken_prefix_ % kOrderWindow);
  }
  if ((head.flags & kLast) == 0) return;
  ended_ = true;
  found_.missing = head.number + 1 - taken_prefix_ - taken_.count();
}

// The last bytes come first: they are the most likely to be late.
void Meter::CheckOrdered(uint64_t number, uint64_t offset, uint64_t length) {
  ++found_.writes;
  found_.bytes += length;
  const char* const place = target() + offset;
  const uint64_t middle = length > kFirstBytes ? (length - kFirstBytes) / 8 * 8 : 0;
  const uint64_t pattern = OrderPattern(number);
  uint64_t differing = DifferingBytes(place, middle, length, pattern);
  differing += DifferingBytes(place, 0, middle, pattern);
  if (differing == 0) return;
  std::string what = "notification " + std::to_string(number) + " came before " +
                     std::to_string(differing) + " of the " + std::to_string(length) +
                     " bytes that were written before it";
  if (found_.early < kWaitedFor) {
    std::this_thread::sleep_for(kWait);
    const uint64_t left = DifferingBytes(place, 0, length, pattern);
    found_.corrupt += left > 0;
    what += left > 0 ? "; 20 ms later " + std::to_string(left) + " still differed"
                     : "; 20 ms later they were there";
  }
  Fault(&found_.early, what);
}

void Meter::Fault(uint64_t* count, const std::string& what) {
  ++*count;
  if (found_.first.empty()) found_.first = what;
}

}  // namespace rdma_transport::fabric
