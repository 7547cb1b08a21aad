#include "fabric/measure.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

namespace rdma_transport::fabric {
namespace {

constexpr int kPollsPerYield = 64;  // with fewer processors than ends, the peer must get one
constexpr uint64_t kLargestNote = 64 << 10;
constexpr uint64_t kFloodWindow = 4096;  // notifications that may be under way
constexpr uint64_t kFloodAck = kFloodWindow / 4;
constexpr Nanos kClosePatience = kSecond;
constexpr Nanos kNap = 100 * kMillisecond;
constexpr char kPattern = 0x5a;

struct Introduction {
  uint64_t key;
  uint64_t largest;
};

bool IsNote(Test test) { return test == Test::kNotifyLatency || test == Test::kNotifyRate; }

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
  const Nanos deadline = Now() + kClosePatience;
  while (!closed_ && Now() < deadline) device_->Poll();
}

void Meter::OnNotify(const char* data, size_t length) {
  if (notes_++ == 0) first_.assign(data, length);
}

void Meter::OnTransfer(uint64_t, const Status& status) {
  ++transfers_;
  if (!status.ok() && reason_.ok()) reason_ = status;
}

void Meter::OnClosed(const Status& status) {
  closed_ = true;
  reason_ = Status(status.ok() ? Code::kUnavailable : status.code(), status.message());
}

template <typename Condition>
Status Meter::Until(Nanos patience, Condition condition, bool sleeps) {
  const Nanos deadline = Now() + patience;
  for (int idle = 0; !condition();) {
    if (!reason_.ok()) return reason_;
    if (closed_) return Status(Code::kUnavailable, "the channel is closed");
    if (device_->Poll() > 0) continue;
    if (++idle % kPollsPerYield != 0) continue;
    if (Now() > deadline) return Status(Code::kDeadlineExceeded, "the peer does nothing");
    if (!sleeps) {
      sched_yield();
    } else if (device_->Rest()) {
      device_->Sleep(std::min(deadline, Now() + kNap));
    }
  }
  return reason_;
}

// Until that many more notifications came.
Status Meter::Expect(const Plan& plan, uint64_t notes, bool sleeps) {
  expected_ += notes;
  return Until(plan.patience, [this] { return notes_ >= expected_; }, sleeps);
}

// Its bytes mean nothing.
Status Meter::Notify(uint64_t bytes) {
  const iovec part = {source(), bytes};
  return channel_->Notify(&part, 1, Urgency::kWake);
}

Status Meter::Introduce(Nanos patience) {
  RDMA_RETURN_IF_ERROR(Until(patience, [this] { return connected_; }));
  RDMA_RETURN_IF_ERROR(channel_->Share(region_->key()));
  Introduction mine = {region_->key(), largest_};
  const iovec part = {&mine, sizeof(mine)};
  RDMA_RETURN_IF_ERROR(channel_->Notify(&part, 1, Urgency::kWake));
  Plan plan;
  plan.patience = patience;
  RDMA_RETURN_IF_ERROR(Expect(plan, 1));
  Introduction peer;
  if (first_.size() != sizeof(peer)) return Wrong("the peer did not introduce its memory");
  std::memcpy(&peer, first_.data(), sizeof(peer));
  peer_key_ = peer.key;
  peer_largest_ = peer.largest;
  channel_->Map(PeerTarget(1));  // a fabric that maps has it from here on
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

Status Meter::Run(const Plan& plan, Measured* measured) {
  RDMA_RETURN_IF_ERROR(Check(plan));
  *measured = Measured();
  measured->samples.reserve(plan.iterations);
  RDMA_RETURN_IF_ERROR(Expect(plan, 1));  // the peer is there
  switch (plan.test) {
    case Test::kNotifyLatency:
      return NotifyBack(plan, /*active=*/true, measured);
    case Test::kWriteLatency:
      return WriteBack(plan, /*active=*/true, measured);
    case Test::kReadLatency:
      RDMA_RETURN_IF_ERROR(ReadOneByOne(plan, measured));
      break;
    case Test::kWriteBandwidth:
    case Test::kReadBandwidth:
      RDMA_RETURN_IF_ERROR(Stream(plan, measured));
      break;
    case Test::kNotifyRate:
      return Flood(plan, measured);
  }
  // The passive side of one-sided operations hears only of their end, and says what it found.
  RDMA_RETURN_IF_ERROR(Notify(1));
  return Expect(plan, 1);
}

Status Meter::Serve(const Plan& plan) {
  RDMA_RETURN_IF_ERROR(Check(plan));
  target()[plan.bytes - 1] = 0;
  source()[plan.bytes - 1] = kPattern;
  RDMA_RETURN_IF_ERROR(Notify(1));
  if (plan.test == Test::kNotifyLatency) return NotifyBack(plan, /*active=*/false, nullptr);
  if (plan.test == Test::kWriteLatency) return WriteBack(plan, /*active=*/false, nullptr);
  if (plan.test == Test::kNotifyRate) return TakeFlood(plan);
  // One-sided: a processor that polled here would only be missed there.
  RDMA_RETURN_IF_ERROR(Expect(plan, 1, /*sleeps=*/true));
  if (plan.test == Test::kWriteBandwidth && target()[plan.bytes - 1] != kPattern) {
    return Wrong("what was written is not there");
  }
  return Notify(1);
}

Status Meter::NotifyBack(const Plan& plan, bool active, Measured* measured) {
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    const Nanos start = Now();
    if (active) RDMA_RETURN_IF_ERROR(Notify(plan.bytes));
    RDMA_RETURN_IF_ERROR(Expect(plan, 1));
    if (active) measured->samples.push_back((Now() - start) / 2);
    if (!active) RDMA_RETURN_IF_ERROR(Notify(plan.bytes));
  }
  return OkStatus();
}

Status Meter::WriteBack(const Plan& plan, bool active, Measured* measured) {
  const uint64_t last = plan.bytes - 1;
  transfers_ = 0;
  auto write = [&](uint64_t i) {
    source()[last] = static_cast<char>(i);
    RDMA_RETURN_IF_ERROR(channel_->Write(source(), PeerTarget(plan.bytes), i));
    return Notify(1);
  };
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    const Nanos start = Now();
    if (active) RDMA_RETURN_IF_ERROR(write(i));
    RDMA_RETURN_IF_ERROR(Expect(plan, 1));
    if (target()[last] != static_cast<char>(i)) return Wrong("a notification overtook its write");
    if (!active) RDMA_RETURN_IF_ERROR(write(i));
    if (active) measured->samples.push_back((Now() - start) / 2);
    // The source must stay as it is until then.
    RDMA_RETURN_IF_ERROR(Until(plan.patience, [&] { return transfers_ == i + 1; }));
  }
  return OkStatus();
}

Status Meter::ReadOneByOne(const Plan& plan, Measured* measured) {
  target()[plan.bytes - 1] = 0;
  transfers_ = 0;
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    const Nanos start = Now();
    RDMA_RETURN_IF_ERROR(channel_->Read(PeerSource(plan.bytes), target(), i));
    RDMA_RETURN_IF_ERROR(Until(plan.patience, [&] { return transfers_ == i + 1; }));
    measured->samples.push_back(Now() - start);
  }
  return target()[plan.bytes - 1] == kPattern ? OkStatus() : Wrong("what was read is not there");
}

Status Meter::Stream(const Plan& plan, Measured* measured) {
  const bool write = plan.test == Test::kWriteBandwidth;
  source()[plan.bytes - 1] = kPattern;
  target()[plan.bytes - 1] = 0;
  transfers_ = 0;
  const Nanos start = Now();
  for (uint64_t begun = 0; begun < plan.iterations;) {
    while (begun < plan.iterations && begun - transfers_ < plan.window) {
      RDMA_RETURN_IF_ERROR(write ? channel_->Write(source(), PeerTarget(plan.bytes), begun)
                                 : channel_->Read(PeerSource(plan.bytes), target(), begun));
      ++begun;
    }
    RDMA_RETURN_IF_ERROR(channel_->Flush());
    const uint64_t enough = begun < plan.iterations ? begun - plan.window + 1 : begun;
    RDMA_RETURN_IF_ERROR(Until(plan.patience, [&] { return transfers_ >= enough; }));
  }
  measured->elapsed = Now() - start;
  return write || target()[plan.bytes - 1] == kPattern ? OkStatus()
                                                       : Wrong("what was read is not there");
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
  return OkStatus();
}

Status Meter::TakeFlood(const Plan& plan) {
  for (uint64_t taken = 0; taken < plan.iterations;) {
    const uint64_t step = std::min(kFloodAck, plan.iterations - taken);
    RDMA_RETURN_IF_ERROR(Expect(plan, step));
    taken += step;
    if (step == kFloodAck) RDMA_RETURN_IF_ERROR(Notify(1));
  }
  return Notify(1);
}

Status Meter::Copy(const Plan& plan, Measured* measured) {
  if (plan.bytes > largest_) return Status(Code::kInvalidArgument, "more than there is room for");
  *measured = Measured();
  const Nanos start = Now();
  for (uint64_t i = 0; i < plan.iterations; ++i) {
    std::memcpy(target(), source(), plan.bytes);
    asm volatile("" : : "r"(target()) : "memory");  // each of them happens
  }
  measured->elapsed = Now() - start;
  return OkStatus();
}

}  // namespace rdma_transport::fabric
