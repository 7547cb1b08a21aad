#include "fabric/striped/inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/fabric.h"

namespace rdma_transport::fabric::striped {
namespace {

constexpr size_t kMaxHeld = 2 * kMaxQueued;
constexpr size_t kCostOfHeld = 256;  // of one, besides its bytes
// Records that may arrive before an earlier one.
constexpr uint64_t kMaxAhead = uint64_t{1} << 22;

Status Wrong(const char* what) { return Status(Code::kDataLoss, what); }

}  // namespace

void Inbox::AddRail(uint32_t rail) {
  rails_[rail] = 0;
  next_rail_ = std::max(next_rail_, rail + 1);
}

uint64_t Inbox::received(uint32_t rail) const {
  const auto found = rails_.find(rail);
  return found == rails_.end() ? 0 : found->second;
}

void Inbox::NoteHanded(const Record& record) {
  handed_.Add(record.number);
  const bool control = IsControl(record.kind) && record.kind != RecordKind::kSettled;
  if (control) control_ = record.number;
}

bool Inbox::MayLeave(const Record& record) const {
  if ((IsControl(record.kind) ? control_ : handed_.AllTo()) < record.follows) return false;
  return std::all_of(record.waits.begin(), record.waits.end(), [this](const Wait& wait) {
    const auto found = rails_.find(wait.rail);
    return found == rails_.end() || found->second >= wait.records;
  });
}

Status Inbox::Take(uint32_t rail, std::string_view data, Record* record, bool* now) {
  *now = false;
  const auto found = rails_.find(rail);
  RecordHeader header;
  if (found == rails_.end() || data.size() < sizeof(header)) return Wrong("a record too short");
  uint64_t& records = found->second;
  std::memcpy(&header, data.data(), sizeof(header));
  data.remove_prefix(sizeof(header));
  const bool hello = header.kind == RecordKind::kHello;
  if (hello != (records == 0)) {
    return Wrong("a greeting of a rail is missing, or out of place");
  }
  ++records;
  if (hello) {
    record->kind = RecordKind::kHello;
    return header.number == rail ? OkStatus() : Wrong("a greeting of another rail");
  }
  if (header.kind == RecordKind::kMark) {
    return header.number == records ? OkStatus() : Wrong("a mark with a wrong count");
  }
  if (header.kind < RecordKind::kHello || header.kind > RecordKind::kReady || header.number == 0 ||
      header.number > arrived_.AllTo() + kMaxAhead || header.back > header.number ||
      header.waits * sizeof(Wait) > data.size()) {
    return Wrong("the peer sent what is not part of the protocol");
  }
  record->kind = header.kind;
  record->number = header.number;
  record->follows = header.back == 0 ? 0 : header.number - header.back;
  record->waits.resize(header.waits);
  const size_t length = data.size() - header.waits * sizeof(Wait);
  if (header.waits > 0) {
    std::memcpy(record->waits.data(), data.data() + length, header.waits * sizeof(Wait));
  }
  for (const Wait& wait : record->waits) {
    if (wait.rail >= next_rail_) return Wrong("the peer waits for a rail that does not exist");
  }
  record->bytes = data.substr(0, length);
  if (!arrived_.Add(header.number)) return OkStatus();  // sent again, and known
  *now = MayLeave(*record);
  if (*now) {
    NoteHanded(*record);
    return OkStatus();
  }
  if (held_bytes_ + length + kCostOfHeld > kMaxHeld) {
    return Status(Code::kResourceExhausted, "too many notifications wait for another rail");
  }
  held_bytes_ += length + kCostOfHeld;
  record->kept.assign(record->bytes);
  (IsControl(record->kind) ? controls_ : held_)[record->number] = std::move(*record);
  return OkStatus();
}

bool Inbox::TakeFrom(Held* held, Record* record) {
  // A record can only depend on those before it.
  for (auto next = held->begin(); next != held->end(); ++next) {
    if (!MayLeave(next->second)) {
      const bool ordered = held == &held_ && next->second.follows + 1 == next->first;
      if (ordered) return false;  // so do all that come later
      continue;
    }
    *record = std::move(next->second);
    held->erase(next);
    record->bytes = record->kept;
    held_bytes_ -= record->kept.size() + kCostOfHeld;
    NoteHanded(*record);
    return true;
  }
  return false;
}

bool Inbox::Next(Record* record) {
  return TakeFrom(&controls_, record) || TakeFrom(&held_, record);
}

}  // namespace rdma_transport::fabric::striped
