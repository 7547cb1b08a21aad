// The records that a channel sends, and what it knows of their arrival.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/parts.h"
#include "fabric/striped/channel.h"

namespace rdma_transport::fabric::striped {
namespace {

constexpr size_t kMaxBegun = 64;
constexpr size_t kCostOfSent = 128;  // of a notification, besides its bytes

uint32_t RailOf(const std::string& bytes) {
  RailRecord about;
  std::memcpy(&about, bytes.data(), sizeof(about));
  return about.rail;
}

void AddWait(const Rail& rail, uint64_t records, std::vector<Wait>* waits) {
  for (Wait& wait : *waits) {
    if (wait.rail != rail.id) continue;
    wait.records = std::max(wait.records, records);
    return;
  }
  waits->push_back({rail.id, 0, records});
}

// Unless the last notification that follows everything waits for them already.
void AddNewWait(const Rail& rail, uint64_t records, std::vector<Wait>* waits) {
  if (records > rail.ordered) AddWait(rail, records, waits);
}

}  // namespace

Status StripedChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                              After after) {
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) return NotConnected();
  bool holds = main_ == kNone || writes_.Holds(after);
  if (holds || several()) {
    const size_t length = TotalLength(parts, count);
    RDMA_RETURN_IF_ERROR(CheckLength(length));
    RDMA_RETURN_IF_ERROR(CheckQueue(length, writes_.note_bytes() + sent_bytes_));
  }
  if (several()) timed_.store(true, std::memory_order_relaxed);
  if (!holds) {
    const Status sent =
        SendNote(RecordKind::kNotification, parts, count, urgency, notified_ + 1, after);
    holds = sent.code() == Code::kUnavailable && main_ == kNone && OthersThan(kNone);
    if (!sent.ok() && !holds) return sent;
  }
  if (holds) {
    writes_.Add(
        Lane::Note{RecordKind::kNotification, Joined(parts, count), urgency, notified_ + 1, after});
  }
  ++notified_;
  if (number != nullptr) *number = notified_;
  return OkStatus();
}

Status StripedChannel::CheckLength(size_t length) const {
  const uint64_t header = several() ? kMaxStripeHeader : 0;
  if (length + header <= longest_) return OkStatus();
  return Status(Code::kInvalidArgument,
                "a notification of " + std::to_string(length) + " bytes is too long: " +
                    std::to_string(longest_ - std::min(longest_, header)) + " is the most");
}

Status StripedChannel::SendAlone(const iovec* parts, int count, Urgency urgency, uint64_t number) {
  uint64_t record = 0;
  RDMA_RETURN_IF_ERROR(rails_.front().channel->Notify(parts, count, urgency, &record));
  const bool next = !runs_.empty() && runs_.back().record + runs_.back().count == record &&
                    runs_.back().number + runs_.back().count == number;
  if (next) {
    ++runs_.back().count;
  } else {
    runs_.push_back({record, number, 1});
  }
  return OkStatus();
}

// All records up to this one have arrived on the only rail.
void StripedChannel::NoteDelivered(uint64_t record) {
  while (!runs_.empty() && runs_.front().record <= record) {
    Run& run = runs_.front();
    const uint64_t count = std::min(run.count, record + 1 - run.record);
    delivered_.Add(run.number, count);
    run = {run.record + count, run.number + count, run.count - count};
    if (run.count > 0) return;
    runs_.pop_front();
  }
}

// Sends a record on the main rail, and remembers it until it has arrived.
Status StripedChannel::SendNote(RecordKind kind, const iovec* parts, int count, Urgency urgency,
                                uint64_t note, After after) {
  if (!several()) return SendAlone(parts, count, urgency, note);
  uint64_t about = 0;
  if (kind == RecordKind::kSettled) {
    const Rail* rail = FindId(RailOf(Joined(parts, count)));
    about = rail == nullptr ? 0 : rail->failed_as;
  }
  const bool ordered = !IsControl(kind) && after.IsEverything();
  Sent sent;
  sent.kind = kind;
  sent.free = after.IsNothing();
  sent.note = note;
  sent.waits = WaitsFor(kind, after, about);
  sent.bytes = Joined(parts, count);
  sent.number = numbered_ + 1;
  sent.follows = IsControl(kind) ? control_ : ordered ? numbered_ : ordered_;
  RDMA_RETURN_IF_ERROR(Post(&sent, parts, count, urgency));
  ++numbered_;
  if (IsControl(kind) && kind != RecordKind::kSettled) control_ = numbered_;
  if (ordered) {
    ordered_ = numbered_;
    for (const Wait& wait : sent.waits) {
      if (Rail* rail = FindId(wait.rail)) rail->ordered = std::max(rail->ordered, wait.records);
    }
  }
  if (!IsControl(kind)) sent_bytes_ += sent.bytes.size() + kCostOfSent;
  (IsControl(kind) ? controls_ : sent_).push_back(std::move(sent));
  return OkStatus();
}

// If the main rail has just failed, another one takes its place.
Status StripedChannel::Post(Sent* sent, const iovec* parts, int count, Urgency urgency) {
  while (main_ != kNone) {
    Rail& rail = rails_[main_];
    RecordHeader header;
    header.kind = sent->kind;
    header.waits = static_cast<uint8_t>(sent->waits.size());
    header.number = sent->number;
    const uint64_t back = sent->number - sent->follows;
    if (sent->follows > 0) header.back = back >> 32 == 0 ? static_cast<uint32_t>(back) : 1;
    std::array<iovec, 8> few;
    std::vector<iovec> many(static_cast<size_t>(count) + 2 > few.size() ? count + 2 : 0);
    iovec* all = many.empty() ? few.data() : many.data();
    all[0] = {&header, sizeof(header)};
    std::copy(parts, parts + count, all + 1);
    all[count + 1] = {sent->waits.data(), sent->waits.size() * sizeof(Wait)};
    uint64_t record = 0;
    const Status status = rail.channel->Notify(all, count + 2, urgency, &record);
    if (status.ok()) {
      rail.sent = sent->record = record;
      if (urgency == Urgency::kWake) rail.woken = record;
      sent->rail = rail.id;
      Cover(&rail);
      return status;
    }
    if (status.code() != Code::kUnavailable || !OthersThan(main_)) return status;
    FailRail(main_, status);
    if (!sent->free) AddWait(rail, kUntilSettled, &sent->waits);
  }
  return NotConnected();
}

Status StripedChannel::SendControl(RecordKind kind, const RailRecord& record,
                                   std::string_view text) {
  const iovec parts[] = {{const_cast<RailRecord*>(&record), sizeof(record)},
                         {const_cast<char*>(text.data()), text.size()}};
  return SendNote(kind, parts, 2, Urgency::kWake, 0, After::Nothing());
}

bool StripedChannel::SendMark(size_t slot) {
  Rail& rail = rails_[slot];
  if (!rail.greets || rail.failed || rail.closed) return false;
  RecordHeader mark;
  mark.kind = RecordKind::kMark;
  mark.number = rail.sent + 1;
  const iovec part = {&mark, sizeof(mark)};
  const Status status = rail.channel->Notify(&part, 1, Urgency::kWake, &rail.sent);
  if (status.ok()) {
    rail.woken = rail.sent;
    Cover(&rail);
  } else if (OthersThan(slot)) {
    FailRail(slot, status);
  }
  return status.ok();
}

// All writes that were begun on the rail are visible when its last record arrives.
void StripedChannel::Cover(Rail* rail) {
  if (rail->uncovered == 0) return;
  for (auto write = rail->writes.rbegin(); rail->uncovered > 0; ++write, --rail->uncovered) {
    pieces_[*write].record = rail->sent;
  }
  rail->marked = rail->sent;
}

// Returns what a notification by the main rail must wait for.
std::vector<Wait> StripedChannel::WaitsFor(RecordKind kind, After after, uint64_t about) {
  std::vector<Wait> waits;
  // A rail that fails is told of by them, so they cannot wait for one.
  if (IsControl(kind) && kind != RecordKind::kSettled) return waits;
  const bool all = after.IsEverything() || kind == RecordKind::kSettled;
  for (size_t i = 0; i < rails_.size(); ++i) {
    Rail& rail = rails_[i];
    if (i == main_ || rail.channel == nullptr || !rail.carried) continue;
    if (all && rail.uncovered > 0) SendMark(i);
    if (kind == RecordKind::kSettled) {
      // What was repeated went by those that were up then.
      const uint64_t records = rail.failed ? kUntilSettled : rail.marked;
      if (rail.failed_as == 0 || rail.failed_as > about) AddWait(rail, records, &waits);
    } else if (rail.failed) {
      if (!after.IsNothing()) AddNewWait(rail, kUntilSettled, &waits);
    } else {
      AddNewWait(rail, after.IsEverything() ? std::max(rail.marked, rail.floor) : rail.floor,
                 &waits);
    }
  }
  if (all || after.IsNothing()) return waits;
  const auto begun = std::find_if(begun_.rbegin(), begun_.rend(), [after](const Begun& write) {
    return write.cookie == after.cookie();
  });
  if (begun == begun_.rend()) return waits;
  for (const Wait& wait : begun->waits) {
    const Rail* rail = FindId(wait.rail);
    if (rail != nullptr && SlotOf(rail) != main_) AddNewWait(*rail, wait.records, &waits);
  }
  return waits;
}

// What follows this write waits for these records.
void StripedChannel::Remember(uint64_t cookie, std::vector<Wait> waits) {
  begun_.push_back({cookie, std::move(waits)});
  if (begun_.size() <= kMaxBegun) return;
  for (const Wait& wait : begun_.front().waits) {
    if (Rail* rail = FindId(wait.rail)) rail->floor = std::max(rail->floor, wait.records);
  }
  begun_.pop_front();
}

// --- What has arrived ---

bool StripedChannel::Arrived(const Sent& sent) {
  const auto there = [this](uint32_t id, uint64_t record) {
    const Rail* rail = FindId(id);
    if (rail == nullptr) return true;
    return rail->failed ? rail->settled_there : rail->delivered >= record;
  };
  if (sent.rail == kLost) return false;
  if (sent.rail != kConfirmed) {
    const Rail* rail = FindId(sent.rail);
    if (rail != nullptr && rail->delivered < sent.record) return false;
  }
  return std::all_of(sent.waits.begin(), sent.waits.end(),
                     [&](const Wait& wait) { return there(wait.rail, wait.records); });
}

void StripedChannel::NoteArrived() {
  // What one rail settles, those before it may wait for.
  for (bool settled = true; settled;) {
    settled = false;
    for (auto control = controls_.begin(); control != controls_.end();) {
      if (!Arrived(*control)) {
        ++control;
        continue;
      }
      Rail* rail = control->kind == RecordKind::kSettled ? FindId(RailOf(control->bytes)) : nullptr;
      if (rail != nullptr) settled = rail->settled_there = true;
      control = controls_.erase(control);
    }
  }
  while (!sent_.empty() && Arrived(sent_.front())) {
    sent_bytes_ -= sent_.front().bytes.size() + kCostOfSent;
    if (sent_.front().note != 0) delivered_.Add(sent_.front().note);
    sent_.pop_front();
  }
}

// Sends again what a rail that failed has lost, as far as there is room.
void StripedChannel::RepeatNotes() {
  for (std::deque<Sent>* each : {&controls_, &sent_}) {
    for (auto sent = each->begin(); lost_ > 0 && sent != each->end(); ++sent) {
      if (sent->rail != kLost) continue;
      const iovec part = {sent->bytes.data(), sent->bytes.size()};
      if (!Post(&*sent, &part, 1, Urgency::kWake).ok()) return;
      --lost_;
    }
  }
}

}  // namespace rdma_transport::fabric::striped
