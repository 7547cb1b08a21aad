#include "faulty_fabric/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/parts.h"

namespace rdma_transport::testing {
namespace {

// In front of each notification. 16 bytes, so that what follows stays aligned.
struct Envelope {
  enum Kind : uint32_t { kData = 1, kHandedOver = 2, kBye = 3 } kind;
  uint32_t follows;  // the last notification that this one must not overtake
  uint64_t number;
};

// A peer that does not part is stopped.
constexpr Nanos kParting = kSecond;

uint64_t SumOf(const char* data, uint64_t length) {
  uint64_t sum = 14695981039346656037u;
  uint64_t at = 0;
  for (; at + 8 <= length; at += 8) {
    uint64_t word;
    std::memcpy(&word, data + at, sizeof(word));
    sum = (sum ^ word) * 1099511628211u;
  }
  for (; at < length; ++at) sum = (sum ^ static_cast<unsigned char>(data[at])) * 1099511628211u;
  return sum;
}

Status NotConnected() { return Status(Code::kUnavailable, "the channel is not connected"); }

}  // namespace

void FaultyChannel::Expect(bool condition, const char* what) const {
  if (!condition) Violations::Add(std::string(inner_->fabric()) + ": " + what);
}

Status FaultyChannel::Open() { return device_->inner()->Open(weak_from_this(), &inner_); }

// --- What the protocol does ---

Status FaultyChannel::Connect(std::string_view peer_address, fabric::Role role,
                              const fabric::Terms& terms) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    Expect(!connect_called_, "Connect() twice");
    connect_called_ = true;
  }
  Status wrong;
  if (device_->dice().Roll(Fault::kConnect, &wrong)) return wrong;
  return inner_->Connect(peer_address, role, terms);
}

Status FaultyChannel::Share(uint64_t key) {
  Status wrong;
  if (device_->dice().Roll(Fault::kShare, &wrong)) return wrong;
  return inner_->Share(key);
}

fabric::MappedSpan FaultyChannel::Map(const fabric::RemoteSpan& span) {
  Expect(device_->OnPollingThread(), "Map() by another than the polling thread");
  {
    std::lock_guard<std::mutex> lock(mu_);
    mapped_.insert(span.key);
  }
  if (card_) return {};
  fabric::MappedSpan mapped = inner_->Map(span);
  return device_->dice().Roll(Fault::kMap) ? fabric::MappedSpan() : mapped;
}

Status FaultyChannel::Notify(const iovec* parts, int count, fabric::Urgency urgency,
                             uint64_t* number, fabric::After after) {
  Dice& dice = device_->dice();
  Status wrong;
  if (dice.Roll(Fault::kNotify, &wrong)) return wrong;
  if (dice.Roll(Fault::kBreak, &wrong)) Break(wrong);
  std::lock_guard<std::mutex> lock(mu_);
  if (stopped_) return NotConnected();
  const auto follows = static_cast<uint32_t>(after.IsEverything() ? notified_ : follows_);
  Envelope envelope = {Envelope::kData, follows, notified_ + 1};
  std::vector<iovec> all = {{&envelope, sizeof(envelope)}};
  all.insert(all.end(), parts, parts + count);
  const int all_count = count + 1;
  if (!card_) {
    uint64_t given = 0;
    RDMA_RETURN_IF_ERROR(inner_->Notify(all.data(), all_count, urgency, &given, after));
    Expect(given == ++notified_, "notifications are numbered one by one");
  } else {
    if (!connected_) return NotConnected();
    Work work = {Work::Kind::kNotify, {}, nullptr, 0, {}, urgency};
    work.bytes = Joined(all.data(), all_count);
    ++notified_;
    work.free = !after.IsEverything();
    work_.insert(PlaceFor(after), std::move(work));
    device_->Wake();
  }
  if (after.IsEverything()) follows_ = notified_;
  if (number != nullptr) *number = notified_;
  return OkStatus();
}

// With mu_ held. As a card: where a notification may go that overtakes some of what it may.
std::deque<FaultyChannel::Work>::iterator FaultyChannel::PlaceFor(fabric::After after) {
  auto place = work_.end();
  if (after.IsEverything()) return place;
  for (uint64_t most = device_->dice().Draw(4); most > 0 && place != work_.begin(); --most) {
    const Work& before = *std::prev(place);
    const bool follows = before.kind == Work::Kind::kNotify
                             ? !before.free
                             : before.kind == Work::Kind::kWrite && !after.IsNothing() &&
                                   before.cookie == after.cookie();
    if (follows) break;
    --place;
  }
  return place;
}

// With mu_ held.
Status FaultyChannel::CheckTransfer(const fabric::RemoteSpan& remote, const char* local,
                                    uint64_t cookie, bool write) {
  if (stopped_ || !connected_) return NotConnected();
  if (MapsPeer()) {
    Expect(mapped_.count(remote.key) != 0, "an operation on a region that Map() never looked for");
  }
  if (!Copies()) {
    fabric::RemoteSpan span;
    Expect(remote.length == 0 || (inner_->Locate(local, &span) && span.length >= remote.length),
           "the local end of an operation lies outside of every region");
  }
  if (cookie == fabric::kNobodyWaits) return OkStatus();
  Expect(transfers_.count(cookie) == 0, "a cookie twice");
  const bool watched = write && !Copies();
  transfers_[cookie] = {local, remote.length, watched ? SumOf(local, remote.length) : 0, write};
  return OkStatus();
}

void FaultyChannel::DropTransfer(uint64_t cookie) {
  std::lock_guard<std::mutex> lock(mu_);
  transfers_.erase(cookie);
}

Status FaultyChannel::Read(const fabric::RemoteSpan& source, char* destination, uint64_t cookie) {
  Dice& dice = device_->dice();
  Status wrong;
  if (dice.Roll(Fault::kRead, &wrong)) return wrong;
  if (dice.Roll(Fault::kBreak, &wrong)) Break(wrong);
  {
    std::lock_guard<std::mutex> lock(mu_);
    RDMA_RETURN_IF_ERROR(CheckTransfer(source, destination, cookie, /*write=*/false));
    if (card_) {
      work_.push_back({Work::Kind::kRead, source, destination, cookie, {}, {}});
      device_->Wake();
      return OkStatus();
    }
  }
  if (dice.Roll(Fault::kReadEnd, &wrong)) {
    EndTransfer(cookie, wrong);
    device_->Wake();
    return OkStatus();
  }
  const Status begun = inner_->Read(source, destination, cookie);
  if (!begun.ok()) DropTransfer(cookie);
  return begun;
}

Status FaultyChannel::Write(const char* source, const fabric::RemoteSpan& destination,
                            uint64_t cookie) {
  Dice& dice = device_->dice();
  Status wrong;
  if (dice.Roll(Fault::kWrite, &wrong)) return wrong;
  if (dice.Roll(Fault::kBreak, &wrong)) Break(wrong);
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (card_) RDMA_RETURN_IF_ERROR(Check(source, destination, fabric::Access::kRemoteReadWrite));
    RDMA_RETURN_IF_ERROR(CheckTransfer(destination, source, cookie, /*write=*/true));
    if (card_) {
      work_.push_back({Work::Kind::kWrite, destination, const_cast<char*>(source), cookie, {}, {}});
      device_->Wake();
      return OkStatus();
    }
  }
  const Status begun = inner_->Write(source, destination, cookie);
  if (!begun.ok()) DropTransfer(cookie);
  return begun;
}

void FaultyChannel::Close(const Status& reason) {
  if (!card_) return inner_->Close(reason);
  Break(reason);
}

void FaultyChannel::Break(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (stopped_ || broken_) return;
    broken_ = true;
    reason_ = reason;
  }
  device_->CountBreak();
  device_->Wake();
}

// --- What the fabric tells ---

void FaultyChannel::Put(Event event) {
  Dice& dice = device_->dice();
  if (dice.Roll(Fault::kLate)) event.due = polls_ + dice.Draw(dice.faults().most_late);
  std::lock_guard<std::mutex> lock(mu_);
  const bool loose = event.kind == Event::Kind::kDelivered || event.kind == Event::Kind::kTransfer;
  if (loose) {
    loose_.push_back(std::move(event));
  } else {
    ordered_.push_back(std::move(event));
  }
}

void FaultyChannel::OnConnected() {
  Expect(device_->OnPollingThread(), "OnConnected() outside of Poll()");
  Expect(!inner_connected_ && !inner_closed_, "OnConnected() twice, or after the end");
  inner_connected_ = true;
  Put({Event::Kind::kConnected, 0, {}, 0, {}});
}

void FaultyChannel::OnNotify(const char* data, size_t length) {
  Expect(device_->OnPollingThread(), "OnNotify() outside of Poll()");
  Expect(inner_connected_ && !inner_closed_, "OnNotify() before the beginning or after the end");
  Envelope envelope;
  if (length < sizeof(envelope)) return Expect(false, "a notification that lost its beginning");
  std::memcpy(&envelope, data, sizeof(envelope));
  if (envelope.kind == Envelope::kHandedOver) {
    return Put({Event::Kind::kDelivered, 0, {}, envelope.number, {}});
  }
  if (envelope.kind == Envelope::kBye) {
    std::lock_guard<std::mutex> lock(mu_);
    stopped_ = parted_ = true;
    work_.clear();
    reason_ = Status(Code::kUnavailable,
                     "the peer closed the channel: " + std::string(data + 16, length - 16));
    return;
  }
  Expect(envelope.kind == Envelope::kData && received_.AllTo() >= envelope.follows,
         "a notification that did not wait for those that it follows");
  Expect(received_.Add(envelope.number), "notifications, each once");
  Put({Event::Kind::kNotify, 0, std::string(data + 16, length - 16), envelope.number, {}});
}

void FaultyChannel::OnDelivered(uint64_t number) {
  Expect(device_->OnPollingThread(), "OnDelivered() outside of Poll()");
  Expect(!inner_closed_, "OnDelivered() after the end");
  if (!card_) Put({Event::Kind::kDelivered, 0, {}, number, {}});
}

void FaultyChannel::OnTransfer(uint64_t cookie, const Status& status) {
  Expect(device_->OnPollingThread(), "OnTransfer() outside of Poll()");
  Expect(!inner_closed_, "OnTransfer() after the end");
  EndTransfer(cookie, status);
}

// Any thread.
void FaultyChannel::EndTransfer(uint64_t cookie, const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = transfers_.find(cookie);
    const bool known = found != transfers_.end() && !found->second.told;
    Expect(known, "OnTransfer() for what is not under way");
    if (!known) return;
    const Transfer& transfer = found->second;
    if (transfer.write && !Copies() && status.ok()) {
      Expect(SumOf(transfer.local, transfer.length) == transfer.sum,
             "the source of a write changed before OnTransfer()");
    }
    found->second.told = true;
  }
  Put({Event::Kind::kTransfer, 0, {}, cookie, status});
}

void FaultyChannel::OnClosed(const Status& status) {
  Expect(device_->OnPollingThread(), "OnClosed() outside of Poll()");
  Expect(!inner_closed_, "OnClosed() twice");
  inner_closed_ = true;
  Status told = status;
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
    work_.clear();
    if (parted_) {
      told = Status(Code::kUnavailable, reason_.message());
    } else if (card_ && status.code() == Code::kAborted && deadline_ != 0) {
      // The peer has parted in answer to this side's word.
      told = Status(Code::kUnavailable, reason_.message());
    }
  }
  Put({Event::Kind::kClosed, 0, {}, 0, told});
}

void FaultyChannel::OnReleased() {
  Expect(device_->OnPollingThread(), "OnReleased() outside of Poll()");
  Expect(inner_closed_ && !released_, "OnReleased() twice, or before the end");
  released_ = true;
}

int FaultyChannel::TellReleased() {
  if (!std::exchange(released_, false) || unavailable_told_) return 0;
  const auto handler = handler_.lock();
  if (handler != nullptr) handler->OnReleased();
  return 1;
}

// --- What the device makes of it ---

// As a card: this side stops, says so, and waits for the peer to stop.
void FaultyChannel::SayBye(const Status& reason) {
  const Envelope envelope = {Envelope::kBye, 0, 0};
  const iovec parts[] = {{const_cast<Envelope*>(&envelope), sizeof(envelope)},
                         {const_cast<char*>(reason.message().data()), reason.message().size()}};
  deadline_ = Now() + kParting;
  if (!inner_connected_ || !inner_->Notify(parts, 2, fabric::Urgency::kWake, nullptr).ok()) {
    inner_->Close(reason);
  }
}

// What is not placed when the channel breaks never is.
void FaultyChannel::Place() {
  for (; !unplaced_.empty(); unplaced_.pop_front()) {
    const Work& work = unplaced_.front();
    inner_->Write(work.bytes.data(), work.remote, fabric::kNobodyWaits).IgnoreError();
  }
}

bool FaultyChannel::DoOne(Work work) {
  Dice& dice = device_->dice();
  Status wrong;
  if (work.kind != Work::Kind::kWrite) Place();
  if (work.kind == Work::Kind::kNotify) {
    const iovec part = {work.bytes.data(), work.bytes.size()};
    return inner_->Notify(&part, 1, work.urgency, nullptr).ok();
  }
  if (work.kind == Work::Kind::kRead) {
    if (dice.Roll(Fault::kReadEnd, &wrong)) {
      EndTransfer(work.cookie, wrong);
      return true;
    }
    inner_->Map(work.remote);
    const Status begun = inner_->Read(work.remote, work.local, work.cookie);
    if (!begun.ok()) EndTransfer(work.cookie, begun);
    return true;
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = transfers_.find(work.cookie);
    if (found != transfers_.end()) {
      Expect(SumOf(work.local, work.remote.length) == found->second.sum,
             "the source of a write changed before it was read");
    }
  }
  inner_->Map(work.remote);
  Status written = OkStatus();
  if (dice.Roll(Fault::kWriteEnd, &wrong)) {
    written = wrong;
  } else if (dice.Roll(Fault::kPlaceLate)) {
    written = inner_->Check(work.local, work.remote, fabric::Access::kRemoteReadWrite);
    work.bytes.assign(work.local, work.remote.length);
    if (written.ok()) unplaced_.push_back(work);
  } else {
    Place();
    written = inner_->Write(work.local, work.remote, fabric::kNobodyWaits);
  }
  if (work.cookie != fabric::kNobodyWaits) EndTransfer(work.cookie, written);
  if (!written.ok()) Break(written);  // what comes after it must not arrive
  return written.ok();
}

void FaultyChannel::DoWork() {
  bool breaks = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    breaks = std::exchange(broken_, false) && !stopped_;
    if (breaks && card_) {
      stopped_ = true;
      work_.clear();  // lost on the way
    }
  }
  if (breaks && card_) SayBye(reason_);
  if (breaks && !card_) {
    // What the peer has mapped it may go on reading: only a fabric that maps nothing can promise
    // that it does not.
    constexpr Code kCodes[] = {Code::kAborted, Code::kDataLoss, Code::kDeadlineExceeded};
    const Code code =
        inner_connected_ && MapsPeer() ? kCodes[device_->dice().Draw(3)] : Code::kUnavailable;
    inner_->Close(Status(code, reason_.message()));
  }
  if (parted_ && !inner_closed_) inner_->Close(reason_);
  if (deadline_ != 0 && !inner_closed_ && Now() > deadline_) inner_->Close(reason_);
  for (uint64_t left = device_->dice().Draw(8) + 1; left > 0; --left) {
    Work work;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (work_.empty() || broken_ || stopped_) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    if (!DoOne(std::move(work))) return;
  }
}

// With OnClosed() all is over, so it waits for what came before it, but not for what is loose.
bool FaultyChannel::TakeDue(Event* event) {
  std::lock_guard<std::mutex> lock(mu_);
  for (auto it = loose_.begin(); it != loose_.end(); ++it) {
    if (!connected_ || it->due > polls_) continue;
    *event = std::move(*it);
    loose_.erase(it);
    return true;
  }
  if (ordered_.empty() || ordered_.front().due > polls_) return false;
  *event = std::move(ordered_.front());
  ordered_.pop_front();
  if (event->kind == Event::Kind::kConnected) connected_ = true;
  return true;
}

void FaultyChannel::Tell(const Event& event) {
  const auto handler = handler_.lock();
  if (handler == nullptr || closed_told_) return;
  switch (event.kind) {
    case Event::Kind::kConnected:
      return handler->OnConnected();
    case Event::Kind::kNotify: {
      // As many bytes as there are, aligned as in a ring, and gone after the call.
      const auto copy = std::make_unique<char[]>(event.bytes.size());
      std::memcpy(copy.get(), event.bytes.data(), event.bytes.size());
      handler->OnNotify(copy.get(), event.bytes.size());
      handed_.Add(event.number);
      return;
    }
    case Event::Kind::kDelivered:
      if (event.number <= delivered_) return;  // one that said more has overtaken it
      delivered_ = event.number;
      return handler->OnDelivered(event.number);
    case Event::Kind::kTransfer:
      DropTransfer(event.number);
      return handler->OnTransfer(event.number, event.status);
    case Event::Kind::kClosed:
      closed_told_ = true;
      unavailable_told_ = event.status.code() == Code::kUnavailable;
      device_->CountBreak();
      return handler->OnClosed(event.status);
  }
}

int FaultyChannel::Advance(int most) {
  ++polls_;
  if (closed_told_) return TellReleased();
  if (handler_.expired() && !inner_closed_) {
    inner_->Close(Status(Code::kCancelled, "the user of this channel has gone"));
  }
  DoWork();
  int handled = 0;
  Event event;
  while (handled < most && !closed_told_ && TakeDue(&event)) {
    Tell(event);
    ++handled;
  }
  if (card_ && handed_.AllTo() > acknowledged_ && !closed_told_) {
    acknowledged_ = handed_.AllTo();
    const Envelope envelope = {Envelope::kHandedOver, 0, acknowledged_};
    const iovec part = {const_cast<Envelope*>(&envelope), sizeof(envelope)};
    inner_->Notify(&part, 1, fabric::Urgency::kWake, nullptr).IgnoreError();
  }
  return handled;
}

bool FaultyChannel::Busy() {
  if (closed_told_) return released_;
  std::lock_guard<std::mutex> lock(mu_);
  return broken_ || !work_.empty() || !ordered_.empty() || (connected_ && !loose_.empty()) ||
         (parted_ && !inner_closed_) || (deadline_ != 0 && !inner_closed_);
}

}  // namespace rdma_transport::testing
