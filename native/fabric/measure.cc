#include "fabric/measure.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "fabric/pattern.h"

namespace rdma_transport::fabric {
namespace {

constexpr int kPollsPerYield = 64;  // lets the peer run if there are fewer processors than ends
constexpr uint64_t kLargestNote = 64 << 10;
constexpr uint64_t kFloodWindow = 4096;  // maximum number of notifications in flight
constexpr uint64_t kFloodAck = kFloodWindow / 4;
constexpr Nanos kCloseTimeout = kSecond;
constexpr Nanos kNap = 100 * kMillisecond;
constexpr uint64_t kActive = uint64_t{1} << 63;  // set in the patterns of the active side

struct Introduction {
  uint64_t key;
  uint64_t largest;
};

bool IsNote(Test test) { return test == Test::kNotifyLatency || test == Test::kNotifyRate; }
bool IsOneSided(Test test) {
  return !IsNote(test) && test != Test::kWriteLatency && test != Test::kOrder;
}

Status Wrong(const char* what) { return Status(Code::kDataLoss, what); }

}  // namespace

Status Meter::Open(Device* device, uint64_t largest, std::shared_ptr<Meter>* meter) {
  const size_t granule = device->RegionGranule();
  if (largest == 0 || largest > SIZE_MAX / 2 - granule) {
    return Status(Code::kInvalidArgument, "there is nothing to move");
  }
  std::shared_ptr<Meter> made(new Meter(device, largest));
  RDMA_RETURN_IF_ERROR(device->Allocate((2 * largest + granule - 1) / granule * granule,
                                        Access::kRemoteReadWrite, nullptr, &made->region_));
  RDMA_RETURN_IF_ERROR(device->Open(made, &made->channel_));
  *meter = std::move(made);
  return OkStatus();
}

void Meter::Close() {
  channel_->Close(Status(Code::kCancelled, "the measurements are over"));
  const Nanos deadline = Now() + kCloseTimeout;
  while (!closed_ && Now() < deadline) device_->Poll();
}

void Meter::OnNotify(const char* data, size_t length) {
  if (length == sizeof(said_[0]) || length == sizeof(said_)) {  // other lengths carry no report
    said_bytes_ = length;
    std::memcpy(said_, data, length);
  }
  const uint64_t number = notes_++;
  if (ordering_) return TakeOrdered(data, length);
  if (number < awaited_begin_ || number >= awaited_end_) return;
  if (length != awaited_bytes_) {
    wrong_ += std::max<uint64_t>(length, awaited_bytes_);
  } else if (number >= compared_begin_) {
    wrong_ += data[length - 1] != static_cast<char>(number - compared_begin_);
    wrong_ += DifferingBytes(data, 0, length - 1, target_pattern_);
  }
}

void Meter::OnTransfer(uint64_t cookie, const Status& status) {
  ++transfers_;
  if (ordering_) slots_under_way_ &= ~(uint64_t{1} << cookie);
  if (!status.ok() && reason_.ok()) reason_ = status;
}

void Meter::OnClosed(const Status& status) {
  closed_ = true;
  reason_ = Status(status.ok() ? Code::kUnavailable : status.code(), status.message());
}

Status Meter::Until(Nanos timeout, const std::function<bool()>& condition, bool sleeps) {
  const Nanos deadline = Now() + timeout;
  for (int idle = 0; !condition();) {
    if (!reason_.ok()) return reason_;
    if (closed_) return Status(Code::kUnavailable, "the channel is closed");
    if (device_->Poll() > 0) continue;
    if (++idle % kPollsPerYield != 0) continue;
    if (Now() > deadline) return Status(Code::kDeadlineExceeded, "the peer does nothing");
    if (!sleeps) {
      sched_yield();
    } else if (device_->ArmNotification()) {
      device_->Sleep(std::min(deadline, Now() + kNap));
    }
  }
  return reason_;
}

// Waits until `notes` more notifications have arrived.
Status Meter::Expect(const Plan& plan, uint64_t notes, bool sleeps) {
  expected_ += notes;
  return Until(plan.timeout, [this] { return notes_ >= expected_; }, sleeps);
}

// The content does not matter.
Status Meter::Notify(uint64_t bytes) {
  const iovec part = {source(), bytes};
  return channel_->Notify(&part, 1, Urgency::kWake);
}

// Sends this side's pattern; the last byte distinguishes the notifications.
Status Meter::NotifyCompared(uint64_t bytes, uint64_t number) {
  source()[bytes - 1] = static_cast<char>(number);
  return Notify(bytes);
}

Status Meter::Introduce(Nanos timeout) {
  RDMA_RETURN_IF_ERROR(Until(timeout, [this] { return connected_; }));
  RDMA_RETURN_IF_ERROR(channel_->Share(region_->key()));
  Introduction mine = {region_->key(), largest_};
  const iovec part = {&mine, sizeof(mine)};
  RDMA_RETURN_IF_ERROR(channel_->Notify(&part, 1, Urgency::kWake));
  Plan plan;
  plan.timeout = timeout;
  RDMA_RETURN_IF_ERROR(Expect(plan, 1));
  Introduction peer;
  static_assert(sizeof(peer) == sizeof(said_));
  if (said_bytes_ != sizeof(peer)) return Wrong("the peer did not introduce its memory");
  std::memcpy(&peer, said_, sizeof(peer));
  peer_key_ = peer.key;
  peer_largest_ = peer.largest;
  channel_->Map(PeerTarget(1));  // on fabrics that map memory, maps the region now
  peer_region_ = channel_->Remote(peer_key_);
  return OkStatus();
}

Status Meter::Check(const Plan& plan) const {
  const uint64_t most =
      IsNote(plan.test) ? std::min(largest_, kLargestNote) : std::min(largest_, peer_largest_);
  if (plan.bytes >= 1 && plan.bytes <= most && plan.iterations >= 1 && plan.window >= 1) {
    return OkStatus();
  }
  return Status(Code::kInvalidArgument, "this test takes 1 to " + std::to_string(most) +
                                            " bytes, and at least 1 iteration");
}

// Starts a new test: fills the source with this side's pattern and the target with other bytes.
void Meter::Prepare(const Plan& plan, bool active) {
  ++turn_;
  wrong_ = 0;
  said_bytes_ = 0;
  if (plan.test == Test::kOrder) return PrepareOrder(active);
  source_pattern_ = active ? turn_ << 32 | kActive : turn_ << 32;
  target_pattern_ = source_pattern_ ^ kActive;
  FillPattern(source(), plan.bytes, source_pattern_);
  FillPattern(target(), plan.bytes, target_pattern_, ~uint64_t{0});
  if (plan.test == Test::kWriteLatency) target()[plan.bytes - 1] = static_cast<char>(-1);
}

// Expects the notifications of a test and then, untimed, those that are compared. Comparing within
// the timed part would slow the receiver.
void Meter::AwaitNotes(const Plan& plan) {
  awaited_bytes_ = plan.bytes;
  awaited_begin_ = expected_;
  compared_begin_ = expected_ + plan.iterations;
  awaited_end_ = compared_begin_ + kComparedNotes;
}

void Meter::CompareTarget(uint64_t bytes) {
  wrong_ += DifferingBytes(target(), 0, bytes, target_pattern_);
}

Status Meter::Run(const Plan& plan, Measured* measured) {
  RDMA_RETURN_IF_ERROR(Check(plan));
  *measured = Measured();
  if (plan.test != Test::kOrder) measured->samples.reserve(plan.iterations);
  Prepare(plan, /*active=*/true);
  RDMA_RETURN_IF_ERROR(Expect(plan, 1));  // the peer is ready
  switch (plan.test) {
    case Test::kNotifyLatency:
      RDMA_RETURN_IF_ERROR(NotifyBack(plan, /*active=*/true, measured));
      break;
    case Test::kWriteLatency:
      RDMA_RETURN_IF_ERROR(WriteBack(plan, /*active=*/true, measured));
      break;
    case Test::kReadLatency:
      RDMA_RETURN_IF_ERROR(ReadOneByOne(plan, measured));
      break;
    case Test::kWriteBandwidth:
    case Test::kReadBandwidth:
      RDMA_RETURN_IF_ERROR(Stream(plan, measured));
      break;
    case Test::kNotifyRate:
      RDMA_RETURN_IF_ERROR(Flood(plan, measured));
      break;
    case Test::kOrder:
      return Order(plan, measured);
  }
  // One-sided operations do not notify the passive side, so it is notified only at the end. It
  // reports the differences it found.
  if (IsOneSided(plan.test)) RDMA_RETURN_IF_ERROR(Notify(1));
  RDMA_RETURN_IF_ERROR(Expect(plan, 1));
  if (said_bytes_ != sizeof(said_[0])) return Wrong("the peer did not say what it found");
  measured->wrong = wrong_ + said_[0];
  return OkStatus();
}

Status Meter::Serve(const Plan& plan) {
  RDMA_RETURN_IF_ERROR(Check(plan));
  Prepare(plan, /*active=*/false);
  if (IsNote(plan.test)) AwaitNotes(plan);
  RDMA_RETURN_IF_ERROR(Notify(1));
  switch (plan.test) {
    case Test::kNotifyLatency:
      RDMA_RETURN_IF_ERROR(NotifyBack(plan, /*active=*/false, nullptr));
      break;
    case Test::kWriteLatency:
      RDMA_RETURN_IF_ERROR(WriteBack(plan, /*active=*/false, nullptr));
      break;
    case Test::kNotifyRate:
      RDMA_RETURN_IF_ERROR(TakeFlood(plan));
      break;
    case Test::kOrder:
      return TakeOrder(plan);
    default:
      // The operations are one-sided, so sleep: polling here would only take CPU time from the
      // peer.
      RDMA_RETURN_IF_ERROR(Expect(plan, 1, /*sleeps=*/true));
      if (plan.test == Test::kWriteBandwidth) CompareTarget(plan.bytes);
  }
  const iovec found = {&wrong_, sizeof(wrong_)};
  return channel_->Notify(&found, 1, Urgency::kWake);
}

Status Meter::NotifyBack(const Plan& plan, bool active, Measured* measured) {
  if (active) AwaitNotes(plan);
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    const Nanos start = Now();
    if (active) RDMA_RETURN_IF_ERROR(Notify(plan.bytes));
    RDMA_RETURN_IF_ERROR(Expect(plan, 1));
    if (active) measured->samples.push_back((Now() - start) / 2);
    if (!active) RDMA_RETURN_IF_ERROR(Notify(plan.bytes));
  }
  // Send one at a time: queued notifications leave only while the sender polls.
  for (uint64_t i = 0; i < kComparedNotes; ++i) {
    if (active) RDMA_RETURN_IF_ERROR(NotifyCompared(plan.bytes, i));
    RDMA_RETURN_IF_ERROR(Expect(plan, 1));
    if (!active) RDMA_RETURN_IF_ERROR(NotifyCompared(plan.bytes, i));
  }
  return OkStatus();
}

Status Meter::WriteBack(const Plan& plan, bool active, Measured* measured) {
  const uint64_t last = plan.bytes - 1;
  transfers_ = 0;
  auto write = [&](uint64_t i) {
    source()[last] = static_cast<char>(i);
    if (peer_region_ != nullptr) {
      RDMA_RETURN_IF_ERROR(peer_region_->Write(source(), 0, plan.bytes));
      ++transfers_;
    } else {
      RDMA_RETURN_IF_ERROR(channel_->Write(source(), PeerTarget(plan.bytes), i));
    }
    return Notify(1);
  };
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    const Nanos start = Now();
    if (active) RDMA_RETURN_IF_ERROR(write(i));
    RDMA_RETURN_IF_ERROR(Expect(plan, 1));
    wrong_ += target()[last] != static_cast<char>(i);  // the notification overtook its write
    if (!active) RDMA_RETURN_IF_ERROR(write(i));
    if (active) measured->samples.push_back((Now() - start) / 2);
    // The source must not change until the write has ended.
    RDMA_RETURN_IF_ERROR(Until(plan.timeout, [&] { return transfers_ == i + 1; }));
  }
  CompareTarget(last);
  return OkStatus();
}

Status Meter::ReadOnce(const Plan& plan, uint64_t number) {
  if (peer_region_ != nullptr) return peer_region_->Read(peer_largest_, target(), plan.bytes);
  RDMA_RETURN_IF_ERROR(channel_->Read(PeerSource(plan.bytes), target(), number));
  return Until(plan.timeout, [&] { return transfers_ == number + 1; });
}

Status Meter::ReadOneByOne(const Plan& plan, Measured* measured) {
  char& last = target()[plan.bytes - 1];
  const char never = last;
  transfers_ = 0;
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    wrong_ += i > 0 && last == never;
    last = never;
    const Nanos start = Now();
    RDMA_RETURN_IF_ERROR(ReadOnce(plan, i));
    measured->samples.push_back(Now() - start);
  }
  CompareTarget(plan.bytes);
  return OkStatus();
}

Status Meter::Stream(const Plan& plan, Measured* measured) {
  const Nanos start = Now();
  RDMA_RETURN_IF_ERROR(peer_region_ != nullptr ? StreamCopies(plan) : StreamTransfers(plan));
  measured->elapsed = Now() - start;
  if (plan.test == Test::kReadBandwidth) CompareTarget(plan.bytes);
  return OkStatus();
}

Status Meter::StreamCopies(const Plan& plan) {
  const bool write = plan.test == Test::kWriteBandwidth;
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    RDMA_RETURN_IF_ERROR(write ? peer_region_->Write(source(), 0, plan.bytes)
                               : peer_region_->Read(peer_largest_, target(), plan.bytes));
  }
  return OkStatus();
}

Status Meter::StreamTransfers(const Plan& plan) {
  const bool write = plan.test == Test::kWriteBandwidth;
  transfers_ = 0;
  for (uint64_t begun = 0; begun < plan.iterations;) {
    while (begun < plan.iterations && begun - transfers_ < plan.window) {
      RDMA_RETURN_IF_ERROR(write ? channel_->Write(source(), PeerTarget(plan.bytes), begun)
                                 : channel_->Read(PeerSource(plan.bytes), target(), begun));
      ++begun;
    }
    RDMA_RETURN_IF_ERROR(channel_->Flush());
    const uint64_t enough = begun < plan.iterations ? begun - plan.window + 1 : begun;
    RDMA_RETURN_IF_ERROR(Until(plan.timeout, [&] { return transfers_ >= enough; }));
  }
  return OkStatus();
}

Status Meter::Flood(const Plan& plan, Measured* measured) {
  const Nanos start = Now();
  uint64_t acked = 0;
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    if (i - acked >= kFloodWindow) {
      RDMA_RETURN_IF_ERROR(Expect(plan, 1));
      acked += kFloodAck;
    }
    RDMA_RETURN_IF_ERROR(Notify(plan.bytes));
    if (i % 64 == 0) device_->Poll();
  }
  RDMA_RETURN_IF_ERROR(Expect(plan, plan.iterations / kFloodAck - acked / kFloodAck + 1));
  measured->elapsed = Now() - start;
  for (uint64_t i = 0; i < kComparedNotes; ++i) {
    RDMA_RETURN_IF_ERROR(NotifyCompared(plan.bytes, i));
  }
  return OkStatus();
}

Status Meter::TakeFlood(const Plan& plan) {
  for (uint64_t taken = 0; taken < plan.iterations;) {
    const uint64_t step = std::min(kFloodAck, plan.iterations - taken);
    RDMA_RETURN_IF_ERROR(Expect(plan, step));
    taken += step;
    if (step == kFloodAck) RDMA_RETURN_IF_ERROR(Notify(1));
  }
  RDMA_RETURN_IF_ERROR(Notify(1));
  return Expect(plan, kComparedNotes);
}

Status Meter::Copy(const Plan& plan, Measured* measured) {
  if (plan.bytes > largest_) return Status(Code::kInvalidArgument, "more than there is room for");
  *measured = Measured();
  const Nanos start = Now();
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    std::memcpy(target(), source(), plan.bytes);
    asm volatile("" : : "r"(target()) : "memory");  // keeps the compiler from removing the copy
  }
  measured->elapsed = Now() - start;
  return OkStatus();
}

}  // namespace rdma_transport::fabric
