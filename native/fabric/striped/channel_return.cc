// Rails that return, and those that are left although they have not failed.
//
// The active end opens a plain channel for a place without one, and offers its address; the passive
// end opens another one and answers. A thread connects it, because the peer's address may have to
// be resolved. Then another call shares all memory, and the rail is used.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fabric/striped/channel.h"

namespace rdma_transport::fabric::striped {
namespace {

constexpr Nanos kFirstDelay = 1 * kSecond;
constexpr Nanos kLongestDelay = 60 * kSecond;
constexpr Nanos kConnectTimeout = 30 * kSecond;

}  // namespace

// A rail has connected. It is used when both ends have shared on it what they had shared on others.
void StripedChannel::Prepare(size_t slot) {
  if (shared_.empty()) return Greet(&rails_[slot]);
  slow_.push_back([weak = weak_from_this(), channel = rails_[slot].channel, id = rails_[slot].id,
                   keys = shared_] {
    std::vector<uint64_t> over;  // regions that have ended
    for (const uint64_t key : keys) {
      if (channel->Share(key).code() == Code::kInternal) over.push_back(key);
    }
    const auto self = weak.lock();
    if (self == nullptr) return;
    std::lock_guard<std::mutex> lock(self->mu_);
    for (const uint64_t key : over) self->shared_.erase(key);
    if (Rail* rail = self->FindId(id)) self->Greet(rail);
  });
  Attend();
}

void StripedChannel::Greet(Rail* rail) {
  if (rail->failed || !rail->alive()) return;
  rail->greets = true;
  if (!several()) return Use(rail);
  RecordHeader hello;
  hello.kind = RecordKind::kHello;
  hello.number = rail->id;
  const iovec part = {&hello, sizeof(hello)};
  const Status sent = rail->channel->Notify(&part, 1, Urgency::kWake, &rail->sent);
  if (sent.ok()) return Use(rail);
  if (OthersThan(SlotOf(rail))) FailRail(SlotOf(rail), sent);
}

// Uses the rail if both ends are ready.
void StripedChannel::Use(Rail* rail) {
  const bool ready = rail->greets && (rail->greeted || !several());
  if (!ready || rail->failed || rail->up || !rail->alive()) return;
  rail->up = rail->carried = true;
  longest_ = std::min(longest_, rail->channel->backlog().longest);
  rail->since = Now();
  const bool again = std::exchange(rail->delay, 0) != 0;
  rail->unused.clear();
  writes_.ResetRails();
  reads_.ResetRails();
  Attend();
  if (!Serving()) return;
  if (main_ == kNone) main_ = SlotOf(rail);
  Log(again ? LogLevel::kInfo : LogLevel::kDebug, device_->name() + ": the channel " +
                                                      rails_[main_].channel->Route() +
                                                      " also uses " + rail->name);
  Progress();
  Advance();
}

// The place waits for another rail.
void StripedChannel::Empty(size_t slot) {
  Rail& old = rails_[slot];
  dropped_.emplace_back(old.id, std::move(old.channel));
  Rail empty;
  empty.device = old.device;
  empty.name = old.name;
  empty.unused = old.unused;
  empty.delay = std::clamp(2 * old.delay, kFirstDelay, kLongestDelay);
  empty.due = Now() + empty.delay;
  old = std::move(empty);
  NoteArrived();  // records may have waited for it
  timed_.store(true);
  Attend();
}

// Says why a rail does not return, unless the last attempt failed for the same reason.
void StripedChannel::NoteUnused(size_t slot, const std::string& why) {
  if (std::exchange(rails_[slot].unused, why) == why || main_ == kNone) return;
  Log(LogLevel::kInfo, device_->name() + ": the channel " + rails_[main_].channel->Route() +
                           " still does without " + rails_[slot].name + ": " + why);
}

void StripedChannel::WatchRails(Nanos now) {
  bool timed = !sent_.empty() || !controls_.empty() || !writes_.empty() || !reads_.empty();
  for (size_t slot = 0; slot < rails_.size() && state_.load() == State::kConnected; ++slot) {
    Rail& rail = rails_[slot];
    const bool active = rail.device->Active();
    const bool became = active && !std::exchange(rail.active, active);
    rail.active = active;
    if (rail.channel == nullptr) {
      timed |= active_;
      if (became && !active_) {
        RailRecord ready;
        ready.slot = static_cast<uint32_t>(slot);
        SendControl(RecordKind::kReady, ready).IgnoreError();
      }
      if (active_ && active && (became || now >= rail.due)) OfferRail(slot, now);
    } else if (!rail.up) {
      timed = true;
      if (now <= rail.deadline || rail.deadline == 0) continue;
      if (!rail.failed) {
        FailRail(slot, Status(Code::kUnavailable, "it does not connect"));
      } else {
        CloseLocked(Status(Code::kUnavailable,
                           "what " + rail.name + " has lost could not be sent again in time"));
      }
    } else {
      const bool other = std::any_of(rails_.begin(), rails_.end(), [](const Rail& each) {
        return each.up && each.device->Active();
      });
      if (!active && other) {
        FailRail(slot, Status(Code::kUnavailable, "its port is not active"));
      } else {
        LeaveIfHeld(slot, now);
      }
    }
  }
  if (timed) timed_.store(true);
}

// What a port sends may stay in its interface without an error: Soft-RoCE stops its retries if it
// cannot send them. If another rail shows that the peer is there, this one is left, before the peer
// counts as silent.
void StripedChannel::LeaveIfHeld(size_t slot, Nanos now) {
  Rail& rail = rails_[slot];
  const bool busy = rail.delivered < rail.sent || !rail.writes.empty() ||
                    rail.under_way[0] + rail.under_way[1] > 0;
  if (!busy || rail.heard > rail.since) {
    rail.since = busy ? std::max(rail.heard, rail.since) : now;
    return;
  }
  const Nanos limit = std::max(device_->peer_timeout() / 2, kSecond);
  if (now - rail.since < limit / 2) return;
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (i == slot || !rails_[i].up) continue;
    if (rails_[i].heard > rail.since + limit / 4) {
      if (now - rail.since < limit) return;
      return FailRail(slot,
                      Status(Code::kUnavailable, "for " + std::to_string(limit / kMillisecond) +
                                                     " ms, nothing that it carries has ended"));
    }
    if (rails_[i].delivered == rails_[i].sent) SendMark(i);
  }
}

// --- Offers ---

Status StripedChannel::MakeRail(size_t slot, uint32_t id) {
  Rail& rail = rails_[slot];
  if (!rail.device->Active()) {
    return Status(Code::kUnavailable, "its port is not active");
  }
  auto end = std::make_shared<RailEnd>(weak_from_this());
  std::shared_ptr<Channel> channel;
  RDMA_RETURN_IF_ERROR(rail.device->Open(end, &channel));
  rail.end = std::move(end);
  rail.channel = std::move(channel);
  rail.id = rail.end->rail = id;
  rail.deadline = 0;
  return OkStatus();
}

void StripedChannel::OfferRail(size_t slot, Nanos now) {
  Rail& rail = rails_[slot];
  rail.delay = std::clamp(2 * rail.delay, kFirstDelay, kLongestDelay);
  rail.due = now + rail.delay;
  RailRecord offer;
  offer.rail = next_rail_;
  offer.slot = static_cast<uint32_t>(slot);
  Status offered = MakeRail(slot, next_rail_);
  if (offered.ok()) {
    inbox_.AddRail(offer.rail);
    offered = SendControl(RecordKind::kOffer, offer, rail.channel->Address());
    if (offered.ok()) {
      ++next_rail_;
      return;
    }
    Empty(slot);
  }
  NoteUnused(slot, offered.message());
}

void StripedChannel::ConnectRail(size_t slot, std::string_view address) {
  rails_[slot].deadline = Now() + kConnectTimeout;
  timed_.store(true);
  slow_.push_back([weak = weak_from_this(), channel = rails_[slot].channel, id = rails_[slot].id,
                   to = std::string(address), role = active_ ? Role::kActive : Role::kPassive,
                   terms = terms_] {
    const Status begun = channel->Connect(to, role, terms);
    if (const auto self = weak.lock()) self->OnConnectBegun(id, begun);
  });
  Attend();
}

// On any thread.
void StripedChannel::OnConnectBegun(uint32_t id, const Status& status) {
  std::lock_guard<std::mutex> lock(mu_);
  Rail* rail = FindId(id);
  if (rail == nullptr || !Serving()) return;
  const size_t slot = SlotOf(rail);
  RailRecord record;
  record.rail = id;
  record.slot = static_cast<uint32_t>(slot);
  if (status.ok()) {
    if (active_ || rail->failed) return;
    SendControl(RecordKind::kAnswer, record, rail->channel->Address()).IgnoreError();
  } else if (active_ || rail->failed) {
    rail->closed = rail->released = true;
    FailRail(slot, status);
    Progress();
  } else {
    NoteUnused(slot, status.message());
    Empty(slot);
    SendControl(RecordKind::kDecline, record).IgnoreError();
  }
}

Status StripedChannel::HandleOffer(RecordKind kind, const RailRecord& record,
                                   std::string_view address) {
  const bool to_passive = kind == RecordKind::kOffer;
  const bool misdirected = active_ == to_passive && kind != RecordKind::kDecline;
  if (record.slot >= rails_.size() || misdirected || (to_passive && record.rail < next_rail_)) {
    return Status(Code::kDataLoss, "an offer of a rail at a wrong time");
  }
  const size_t slot = record.slot;
  Rail& rail = rails_[slot];
  if (to_passive) {
    next_rail_ = record.rail + 1;
    inbox_.AddRail(record.rail);  // the peer may name it from now on
    Status made(Code::kUnavailable, "the one that failed is still being dropped");
    if (rail.channel == nullptr) made = MakeRail(slot, record.rail);
    if (made.ok()) {
      ConnectRail(slot, address);
      return OkStatus();
    }
    inbox_.Settle(record.rail);
    NoteUnused(slot, made.message());
    SendControl(RecordKind::kDecline, record).IgnoreError();
    return OkStatus();
  }
  if (kind == RecordKind::kReady) {
    rail.due = 0;
    Attend();
    return OkStatus();
  }
  if (rail.channel == nullptr || rail.id != record.rail) return OkStatus();
  if (!active_) {
    if (OthersThan(slot)) FailRail(slot, Status(Code::kUnavailable, "the peer cannot use it"));
    if (rail.failed) rail.channel->NotePeerClosed();
    return OkStatus();
  }
  if (rail.connected) return OkStatus();
  if (kind == RecordKind::kDecline) {
    NoteUnused(slot, "the peer cannot use it; see its log");
    Empty(slot);
  } else if (!rail.failed) {
    ConnectRail(slot, address);
  }
  return OkStatus();
}

}  // namespace rdma_transport::fabric::striped
