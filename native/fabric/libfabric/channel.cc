#include "fabric/libfabric/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "base/random.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr Nanos kClosingTimeout = 200 * kMillisecond;
constexpr Nanos kPartingTimeout = 500 * kMillisecond;
// A provider that takes no operation for so long, while none is under way, has no connection.
constexpr Nanos kUnreachable = kSecond;
constexpr size_t kMaxReason = 1024;  // in bytes
// Reads of the peer's mark, which are no transfers.
constexpr uint64_t kMarkOfEnd = ~uint64_t{0};
constexpr uint64_t kMarkOfLife = kMarkOfEnd - 1;

Status NotConnected() { return Status(Code::kUnavailable, "the channel is not connected"); }

size_t LongestRecord(uint32_t frames) { return frames / 2 * Domain::frame_bytes(); }

}  // namespace

LibfabricChannel::LibfabricChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler,
                                   uint32_t number)
    : device_(device),
      handler_(std::move(handler)),
      number_(number),
      tag_(std::max<uint64_t>(Random64(), 1)),
      token_(RandomBytes(kTokenLength)),
      inbox_(device->frames(), LongestRecord(device->frames())),
      outbox_(&device->domain()) {}

LibfabricChannel::~LibfabricChannel() {
  if (peer_ != FI_ADDR_UNSPEC) device_->Leave(remote_.name);
}

// --- Connecting ---

std::string LibfabricChannel::Address() const {
  const Domain& domain = device_->domain();
  ChannelAddress address;
  address.provider = domain.provider();
  address.protocol = domain.traits().protocol;
  address.protocol_version = domain.traits().protocol_version;
  address.format = domain.traits().address_format;
  address.name = domain.name();
  address.tag = tag_;
  address.number = number_;
  address.frames = device_->frames();
  address.remote_data = domain.traits().remote_data;
  address.mark_address = device_->mark().base();
  address.mark_key = device_->mark().key();
  address.token = token_;
  return address.Encode();
}

Status LibfabricChannel::Connect(std::string_view peer_address, Role role) {
  ChannelAddress remote;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &remote));
  const Domain& domain = device_->domain();
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kNew) {
    return Status(Code::kAborted, "the channel was closed: " + close_reason_.message());
  }
  RDMA_RETURN_IF_ERROR(device_->Reach(remote.name, &peer_));
  remote_ = std::move(remote);
  passive_ = role == Role::kPassive;
  remote_data_ = remote_.remote_data && domain.traits().remote_data;
  greeting_ = Greeting(key_, role, token_, remote_.token);
  route_ =
      domain.provider() + " " + domain.Text(domain.name()) + " -> " + domain.Text(remote_.name);
  outbox_.Attach(remote_.frames);
  state_.store(State::kConnecting);
  if (passive_) return OkStatus();
  const iovec part = {const_cast<char*>(greeting_.own().data()), greeting_.own().size()};
  return AddRecord(RecordKind::kHello, &part, 1, 0, /*now=*/true);
}

std::string LibfabricChannel::Route() const {
  std::lock_guard<std::mutex> lock(mu_);
  return route_;
}

Status LibfabricChannel::HandleGreeting(RecordKind kind, std::string_view shown) {
  if (state_.load() != State::kConnecting || passive_ != (kind == RecordKind::kHello)) {
    return Status(Code::kDataLoss, "a greeting at a wrong time");
  }
  if (!greeting_.IsPeers(shown)) {
    return Status(Code::kPermissionDenied, "the peer did not prove that it is the one asked for");
  }
  const auto handler = Handler();
  if (handler == nullptr) return Status(Code::kCancelled, "nobody wants this channel any more");
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() != State::kConnecting) return OkStatus();
    if (passive_) {
      const iovec part = {const_cast<char*>(greeting_.own().data()), greeting_.own().size()};
      RDMA_RETURN_IF_ERROR(AddRecord(RecordKind::kAccept, &part, 1, 0, /*now=*/true));
    }
    state_.store(State::kConnected);
  }
  greeted_ = true;
  heard_at_ = Now();
  handler->OnConnected();
  return OkStatus();
}

// --- Notifications ---

Status LibfabricChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Connected()) return NotConnected();
  RDMA_RETURN_IF_ERROR(
      AddRecord(RecordKind::kNotification, parts, count, notified_ + 1, urgency == Urgency::kWake));
  ++notified_;
  if (number != nullptr) *number = notified_;
  return OkStatus();
}

// A record that is not sent now is sent with the next one, or by the polling thread.
Status LibfabricChannel::AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number,
                                   bool now) {
  RDMA_RETURN_IF_ERROR(outbox_.Add(kind, parts, count, number, transfers_.begun()));
  if (now || device_->asleep()) {
    outbox_.Close();
    Pump();
  } else {
    Attend();
  }
  return OkStatus();
}

Status LibfabricChannel::Flush() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load()) || !device_->domain().Usable()) return NotConnected();
  outbox_.Close();
  Pump();
  return OkStatus();
}

Backlog LibfabricChannel::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  return outbox_.backlog();
}

// --- Memory ---

Status LibfabricChannel::Share(uint64_t key) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (shared_.count(key) != 0) return OkStatus();
  }
  RegionRecord record = {};
  std::shared_ptr<Registration> registration;
  // Call without the lock, because it may pin pages.
  RDMA_RETURN_IF_ERROR(device_->memory().Share(key, &record, &registration));
  std::lock_guard<std::mutex> lock(mu_);
  if (!Connected()) return NotConnected();
  if (shared_.count(key) != 0) return OkStatus();
  const iovec part = {&record, sizeof(record)};
  RDMA_RETURN_IF_ERROR(AddRecord(RecordKind::kRegion, &part, 1, 0, /*now=*/false));
  shared_[key] = std::move(registration);
  return OkStatus();
}

void LibfabricChannel::ForgetRegion(uint64_t key) {
  std::shared_ptr<Registration> ended;  // after the lock is released
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = shared_.find(key);
  if (found == shared_.end()) return;
  ended = std::move(found->second);
  shared_.erase(found);
  if (!Connected()) return;
  const iovec part = {&key, sizeof(key)};
  // If the notification is lost, the peer uses a key that the provider refuses.
  AddRecord(RecordKind::kForget, &part, 1, 0, /*now=*/false).IgnoreError();
}

void LibfabricChannel::Keep(OwnerRef memory) {
  std::lock_guard<std::mutex> lock(mu_);
  if (Busy()) kept_.push_back(std::move(memory));
}

bool LibfabricChannel::Locate(const void* data, RemoteSpan* span) const {
  return device_->domain().Usable() && device_->memory().Locate(data, span);
}

// --- One-sided operations ---

Status LibfabricChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  const Status refused = Transfer(/*write=*/false, source, destination, cookie);
  if (refused.ok() || refused.code() == Code::kUnavailable) return refused;
  std::lock_guard<std::mutex> lock(mu_);
  transfers_.Refuse(cookie, refused);
  Attend();
  device_->Wake();
  return OkStatus();
}

Status LibfabricChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Transfer(/*write=*/true, destination, const_cast<char*>(source), cookie);
}

Status LibfabricChannel::Transfer(bool write, const RemoteSpan& span, char* local,
                                  uint64_t cookie) {
  void* descriptor = nullptr;
  const Status found = device_->memory().FindLocal(local, span.length, &descriptor);
  std::lock_guard<std::mutex> lock(mu_);
  if (!Connected()) return NotConnected();
  RDMA_RETURN_IF_ERROR(found);
  RDMA_RETURN_IF_ERROR(transfers_.Begin(write, span, local, descriptor, cookie, device_->chunk()));
  Pump();
  return OkStatus();
}

// --- Posting ---

// With remote data, the peer waits for the writes before a message. Without, this side does.
bool LibfabricChannel::MayLeave(const OutgoingMessage& message) const {
  return remote_data_ ? transfers_.started() >= message.after
                      : transfers_.first_unfinished() > message.after;
}

// The peer must be able to tell writes apart by 16 bits of their sequence.
bool LibfabricChannel::MayLeave(const Piece& piece) const {
  return !piece.write || !remote_data_ || piece.sequence - arrived_there_ <= kMostUnconfirmedWrites;
}

void LibfabricChannel::Pump() {
  if (state_.load() == State::kNew || state_.load() == State::kFinished) return;
  if (!device_->domain().Usable()) return;
  while (true) {
    bool posted = true;
    if (!control_.empty()) {
      posted = PostControl();
    } else if (outbox_.Front() != nullptr && MayLeave(*outbox_.Front())) {
      posted = PostMessage();
    } else if (transfers_.Front() != nullptr && MayLeave(*transfers_.Front())) {
      posted = PostPiece();
    } else if (mark_ == Mark::kDue) {
      posted = PostMark();
    } else {
      return;
    }
    if (!posted) return;
  }
}

// Returns what it confirms, see OnConfirmationSent().
LibfabricChannel::Confirmed LibfabricChannel::FillHeader(char* frame, MessageKind kind,
                                                         const OutgoingMessage* message) {
  MessageHeader header = {};
  header.tag = remote_.tag;
  header.confirmed = read_.load(std::memory_order_acquire);
  header.arrived = arrived_.load(std::memory_order_acquire);
  header.kind = kind;
  if (kind == MessageKind::kDrained && remote_data_) header.writes = transfers_.started();
  if (message != nullptr) {
    header.sequence = message->sequence;
    header.writes = remote_data_ ? message->after : 0;
    header.wants_confirmation =
        outbox_.WantsConfirmation() || state_.load() != State::kConnected ? 1 : 0;
  }
  std::memcpy(frame, &header, sizeof(header));
  return {header.confirmed, header.arrived};
}

void LibfabricChannel::OnConfirmationSent(const Confirmed& confirmed) {
  confirmed_ = confirmed;
  if (read_.load(std::memory_order_relaxed) == confirmed.read) {
    unconfirmed_since_.store(0, std::memory_order_relaxed);
  }
}

Operation* LibfabricChannel::NewOperation(Operation::Kind kind) {
  Operation* operation = device_->NewOperation(kind);
  operation->channel = shared_from_this();
  return operation;
}

bool LibfabricChannel::PostControl() {
  const Control& control = control_.front();
  Operation* operation = NewOperation(Operation::Kind::kMessage);
  if (!device_->domain().TakeFrame(&operation->frame)) {
    device_->Return(operation);
    Attend();
    return false;
  }
  const Confirmed confirmed = FillHeader(operation->frame.data, control.kind, nullptr);
  if (control.asks) {
    MessageHeader header;
    std::memcpy(&header, operation->frame.data, sizeof(header));
    header.sequence = outbox_.last_posted();
    header.wants_confirmation = 1;
    std::memcpy(operation->frame.data, &header, sizeof(header));
  }
  std::memcpy(operation->frame.data + sizeof(MessageHeader), control.text.data(),
              control.text.size());
  const size_t length = sizeof(MessageHeader) + control.text.size();
  const Frame frame = operation->frame;
  const Start start =
      Started(operation, device_->domain().Send(operation, length, peer_), "a message");
  if (start != Start::kDone) {
    device_->domain().ReturnFrame(frame);
    if (start == Start::kFailed) control_.clear();  // there is no way to the peer
    return false;
  }
  control_.pop_front();
  OnConfirmationSent(confirmed);
  return true;
}

bool LibfabricChannel::PostMessage() {
  const OutgoingMessage message = *outbox_.Front();
  Operation* operation = NewOperation(Operation::Kind::kMessage);
  operation->frame = message.frame;
  const Confirmed confirmed = FillHeader(message.frame.data, MessageKind::kStream, &message);
  const ssize_t result = device_->domain().Send(operation, message.length, peer_);
  if (Started(operation, result, "a message") != Start::kDone) return false;
  outbox_.Pop();
  OnConfirmationSent(confirmed);
  return true;
}

bool LibfabricChannel::PostPiece() {
  const Piece piece = *transfers_.Front();
  Domain& domain = device_->domain();
  Operation* operation =
      NewOperation(piece.write ? Operation::Kind::kWrite : Operation::Kind::kRead);
  operation->transfer = piece.transfer;
  operation->sequence = piece.sequence;
  ssize_t result = 0;
  if (piece.write) {
    const uint32_t data = RemoteData(remote_.number, piece.sequence);
    result = domain.Write(operation, piece.local, piece.length, piece.descriptor, peer_,
                          piece.address, piece.key, remote_data_ ? &data : nullptr);
  } else {
    result = domain.Read(operation, piece.local, piece.length, piece.descriptor, peer_,
                         piece.address, piece.key);
  }
  if (Started(operation, result, piece.write ? "a write" : "a read") != Start::kDone) return false;
  // A short write may already have ended, and the provider need not wake anyone for it.
  if (piece.write && device_->asleep()) device_->Wake();
  transfers_.Pop();
  return true;
}

// Its end says that earlier operations of both sides have ended, see LingerLocked(), or that the
// peer is still there, see Probe().
bool LibfabricChannel::PostMark() {
  Operation* operation = NewOperation(Operation::Kind::kRead);
  const bool revoked = device_->domain().traits().cheap_registration;
  operation->transfer = state_.load() == State::kLingering && revoked ? kMarkOfEnd : kMarkOfLife;
  const Frame destination = device_->mark_destination();
  const ssize_t result =
      device_->domain().Read(operation, destination.data, kMarkLength, destination.descriptor,
                             peer_, remote_.mark_address, remote_.mark_key);
  const Start start = Started(operation, result, "a read");
  if (start == Start::kDone) {
    ++marks_;
    mark_ = Mark::kUnderWay;
  }
  if (start == Start::kFailed) mark_ = Mark::kRead;  // there is no way to the peer
  return start == Start::kDone;
}

LibfabricChannel::Start LibfabricChannel::Started(Operation* operation, ssize_t result,
                                                  const char* what) {
  if (result == 0) {
    ++under_way_;
    refused_since_ = 0;
    return Start::kDone;
  }
  device_->Return(operation);
  if (result == -FI_EAGAIN) {
    if (refused_since_ == 0) refused_since_ = Now();
    // The polling thread must try again, and may sleep for long.
    if (!restless_.exchange(true, std::memory_order_relaxed) && device_->asleep()) device_->Wake();
    return Start::kLater;
  }
  const Status error = device_->domain().library().Error(result, what);
  PartLocked(Status(Code::kUnavailable, error.message() + " (" + route_ + ")"));
  return Start::kFailed;
}

// --- Completions and arrivals ---

void LibfabricChannel::OnEnded(const Operation& operation, const Status& status) {
  std::vector<OwnerRef> kept;  // dropped after unlocking
  {
    std::lock_guard<std::mutex> lock(mu_);
    --under_way_;
    if (operation.kind == Operation::Kind::kMessage) {
      device_->domain().ReturnFrame(operation.frame);
    } else if (operation.transfer == kMarkOfEnd || operation.transfer == kMarkOfLife) {
      --marks_;
      if (operation.transfer == kMarkOfEnd || !status.ok()) {
        mark_ = Mark::kRead;
      } else if (mark_ == Mark::kUnderWay) {
        mark_ = Mark::kNone;
      }
    } else if (status.ok()) {
      transfers_.OnEnded(operation.transfer, operation.sequence);
    }
    if (!status.ok()) PartLocked(Status(status.code(), status.message() + " (" + route_ + ")"));
    if (!Busy()) kept.swap(kept_);
    if (!Serving(state_.load())) Attend();
    Pump();
  }
  DeliverNews();
}

void LibfabricChannel::OnMessage(const MessageHeader& header, std::string_view bytes, Nanos now) {
  if (header.kind == MessageKind::kGone || header.kind == MessageKind::kDrained) {
    TakeConfirmation(header).IgnoreError();
    return OnGone(header, bytes, now);
  }
  heard_at_ = now;
  if (ignore_input_ || !Serving(state_.load())) return;
  Status status = TakeConfirmation(header);
  if (status.ok() && header.kind == MessageKind::kStream) {
    status = inbox_.Take(header, bytes, now, [this](RecordKind kind, std::string_view record) {
      return HandleRecord(kind, record);
    });
  } else if (status.ok() && header.kind == MessageKind::kConfirm) {
    // A peer that asks has waited for long: its message was lost, or the confirmation.
    if (header.wants_confirmation != 0) status = inbox_.Expect(header.sequence, now);
    if (header.wants_confirmation != 0 && status.ok()) {
      std::lock_guard<std::mutex> lock(mu_);
      if (control_.empty()) control_.push_back({MessageKind::kConfirm, std::string()});
      Pump();
    }
  } else if (status.ok()) {
    status = Status(Code::kDataLoss, "the peer sent what is not part of the protocol");
  }
  AfterInput(status, header.wants_confirmation != 0, now);
}

void LibfabricChannel::OnArrivedWrite(uint16_t sequence, Nanos now) {
  if (ignore_input_) return;
  if (!Serving(state_.load())) {
    // Only counted: the peer's memory is released when the last one is there.
    const auto discard = [](RecordKind, std::string_view) { return OkStatus(); };
    ignore_input_ = !inbox_.TakeWrite(sequence, now, discard).ok();
    arrived_.store(inbox_.arrived(), std::memory_order_release);
    return Attend();
  }
  AfterInput(inbox_.TakeWrite(sequence, now,
                              [this](RecordKind kind, std::string_view record) {
                                return HandleRecord(kind, record);
                              }),
             /*confirm_at_once=*/false, now);
}

void LibfabricChannel::AfterInput(const Status& status, bool confirm_at_once, Nanos now) {
  read_.store(inbox_.read(), std::memory_order_release);
  arrived_.store(inbox_.arrived(), std::memory_order_release);
  if (!status.ok()) {
    ignore_input_ = true;
    return Close(status);
  }
  DeliverNews();
  std::lock_guard<std::mutex> lock(mu_);
  if (OwesWrites()) return Confirm();
  const uint64_t unconfirmed = inbox_.read() - confirmed_.read;
  if (unconfirmed == 0) return;
  if (!OwesConfirmation()) unconfirmed_since_.store(now, std::memory_order_relaxed);
  if (confirm_at_once || unconfirmed >= device_->frames() / 4) Confirm();
}

void LibfabricChannel::ConfirmIfDue(Nanos before) {
  const Nanos since = unconfirmed_since_.load(std::memory_order_relaxed);
  if (since == 0 || since > before) return;
  std::lock_guard<std::mutex> lock(mu_);
  Confirm();
}

void LibfabricChannel::Confirm() {
  if (read_.load() == confirmed_.read && !OwesWrites()) return;
  if (!Serving(state_.load())) return;
  // What is queued already confirms, too, unless it must wait for what the peer confirms.
  const OutgoingMessage* next = outbox_.Front();
  if (control_.empty() && (next == nullptr || !MayLeave(*next))) {
    control_.push_back({MessageKind::kConfirm, std::string()});
  }
  Pump();
}

// A message after which nothing follows may be lost, too, and so may its confirmation.
void LibfabricChannel::AskForConfirmation(Nanos now) {
  const uint64_t first = outbox_.first_unconfirmed();
  if (first != unconfirmed_ || first == 0) {
    unconfirmed_ = first;
    asked_at_ = now;
  } else if (now - asked_at_ > device_->patience() / 2) {
    asked_at_ = now;
    control_.push_back({MessageKind::kConfirm, std::string(), /*asks=*/true});
    Pump();
  }
}

Status LibfabricChannel::TakeConfirmation(const MessageHeader& header) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!outbox_.OnConfirmed(header.confirmed) || header.arrived > transfers_.started()) {
    return Status(Code::kDataLoss, "the peer confirms what it was not sent");
  }
  arrived_there_ = std::max(arrived_there_, header.arrived);
  Pump();
  return OkStatus();
}

Status LibfabricChannel::HandleRecord(RecordKind kind, std::string_view record) {
  switch (kind) {
    case RecordKind::kNotification:
      if (!greeted_) break;
      if (const auto handler = Handler()) handler->OnNotify(record.data(), record.size());
      return OkStatus();
    case RecordKind::kRegion: {
      RegionRecord region;
      if (!greeted_ || record.size() != sizeof(region)) break;
      std::memcpy(&region, record.data(), sizeof(region));
      std::lock_guard<std::mutex> lock(mu_);
      return transfers_.Learn(region);
    }
    case RecordKind::kForget: {
      uint64_t key = 0;
      if (record.size() != sizeof(key)) break;
      std::memcpy(&key, record.data(), sizeof(key));
      std::lock_guard<std::mutex> lock(mu_);
      transfers_.Forget(key);
      return OkStatus();
    }
    case RecordKind::kHello:
    case RecordKind::kAccept:
      return HandleGreeting(kind, record);
  }
  return Status(Code::kDataLoss, "an unexpected record among the notifications");
}

bool LibfabricChannel::DeliverNews() {
  std::vector<Transfers::Ended> ended;
  uint64_t delivered = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() == State::kLingering || state_.load() == State::kFinished) return false;
    ended = transfers_.TakeEnded();
    if (outbox_.delivered() != told_delivered_) delivered = told_delivered_ = outbox_.delivered();
  }
  if (ended.empty() && delivered == 0) return false;
  const auto handler = Handler();
  if (handler == nullptr) return false;
  if (delivered != 0) handler->OnDelivered(delivered);
  for (const auto& transfer : ended) handler->OnTransfer(transfer.cookie, transfer.status);
  return true;
}

// --- The end ---

void LibfabricChannel::Close(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    CloseLocked(reason);
  }
  device_->Wake();
}

void LibfabricChannel::Abandon() {
  abandoned_.store(true);
  Close(Status(Code::kCancelled, "nobody wants this channel any more"));
}

void LibfabricChannel::Fail(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    PartLocked(reason);
  }
  device_->Wake();
}

void LibfabricChannel::CloseLocked(const Status& reason) {
  const State state = state_.load();
  if (state == State::kNew) return PartLocked(reason);
  if (state != State::kConnecting && state != State::kConnected) return;
  close_reason_ = reason;
  deadline_ = Now() + kClosingTimeout;
  state_.store(State::kClosing);
  outbox_.Close();
  Pump();
  Attend();
}

// Only the first reason is kept.
void LibfabricChannel::PartLocked(const Status& reason) {
  const State state = state_.load();
  if (state != State::kNew && !Serving(state)) return;
  if (state != State::kClosing) close_reason_ = reason;
  deadline_ = Now() + kPartingTimeout;
  outbox_.Drop();
  transfers_.Drop();
  control_.clear();
  state_.store(State::kParting);
  if (state == State::kNew) {
    peer_drained_ = told_drained_ = true;  // there is no peer
  } else {
    told_drained_ = !Busy();
    control_.push_back({told_drained_ ? MessageKind::kDrained : MessageKind::kGone,
                        close_reason_.message().substr(0, kMaxReason)});
    Pump();
  }
  Attend();
  device_->Wake();
}

void LibfabricChannel::OnGone(const MessageHeader& header, std::string_view reason, Nanos now) {
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() == State::kNew) return;
  if (header.kind == MessageKind::kDrained && !std::exchange(peer_drained_, true)) {
    peer_writes_ = header.writes;
    peer_drained_at_ = now;
  }
  PartLocked(
      Status(Code::kUnavailable, "the peer closed the channel: " + Printable(reason, kMaxReason)));
  Attend();
}

// Writes may end at the peer before they arrive here. One that was lost never does.
bool LibfabricChannel::PeerDrained(Nanos now) const {
  return peer_drained_ &&
         (arrived_.load() >= peer_writes_ || now - peer_drained_at_ > device_->patience());
}

// The peer accesses nothing here, and nothing of this side is under way.
bool LibfabricChannel::Apart(Nanos now) const {
  if (Busy() || !control_.empty()) return false;
  return PeerDrained(now) || (state_.load() == State::kLingering && mark_ == Mark::kRead);
}

// The peer has not said that its operations have ended. Those that start from now on find no
// registration, if it was the peer's own; and earlier ones have ended when a read of the peer's
// mark has, in whatever way. If it was not, only a read that fails says that the peer is gone.
void LibfabricChannel::LingerLocked() {
  state_.store(State::kLingering);
  shared_.clear();
  mark_ = peer_drained_ ? Mark::kNone : Mark::kDue;
}

void LibfabricChannel::TellDrained() {
  if (Busy() || std::exchange(told_drained_, true)) return;
  control_.push_back({MessageKind::kDrained, close_reason_.message().substr(0, kMaxReason)});
  Pump();
}

bool LibfabricChannel::Service(Nanos now) {
  if (Abandoned()) Abandon();
  DeliverNews();
  bool closed = false;
  bool released = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    needs_service_.store(false, std::memory_order_relaxed);
    if (Serving(state_.load())) {
      outbox_.Retry();
      outbox_.Close();
    }
    Pump();
    if (state_.load() == State::kClosing) {
      const bool done = outbox_.Idle() && !Busy();
      if (done || now > deadline_) PartLocked(close_reason_);
    }
    if (state_.load() == State::kParting) {
      TellDrained();
      released = Apart(now);
      closed = released || now > deadline_;
      if (closed && !released) LingerLocked();
    } else if (state_.load() == State::kLingering) {
      TellDrained();
      // What the provider refuses for long, while nothing is under way, has no way to the peer.
      const bool unreachable =
          under_way_ == 0 && refused_since_ != 0 && now - refused_since_ > kUnreachable;
      if (unreachable) {
        control_.clear();
        mark_ = Mark::kRead;
      }
      released = Apart(now);
    }
    if (released) {
      state_.store(State::kFinished);
      shared_.clear();
    }
    const State state = state_.load();
    restless_.store(refused_since_ != 0 || state == State::kClosing || state == State::kParting,
                    std::memory_order_relaxed);
  }
  if (closed || released) TellClosed(released);
  return state_.load() != State::kFinished;
}

void LibfabricChannel::TellClosed(bool released) {
  const auto handler = Handler();
  if (handler == nullptr) return;
  if (std::exchange(told_closed_, true)) return handler->OnReleased();
  Status reason;
  {
    std::lock_guard<std::mutex> lock(mu_);
    reason = close_reason_;
  }
  if (released) {
    reason = Status(Code::kUnavailable, reason.message());
  } else if (reason.code() == Code::kUnavailable) {
    reason = Status(Code::kAborted, reason.message());
  }
  handler->OnClosed(reason);
}

void LibfabricChannel::BeforeSleep() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return;
  outbox_.Close();
  Pump();
}

void LibfabricChannel::Probe(Nanos now) {
  const Nanos overdue = inbox_.waiting_since();
  std::lock_guard<std::mutex> lock(mu_);
  const State state = state_.load();
  if (state == State::kLingering) {
    if (mark_ == Mark::kNone && !peer_drained_ && now - heard_at_ > device_->patience()) {
      heard_at_ = now;
      mark_ = Mark::kDue;
    }
    Attend();
  }
  if (state != State::kConnected) return;
  AskForConfirmation(now);
  if (overdue != 0 && now - overdue > device_->patience()) {
    PartLocked(Status(Code::kUnavailable,
                      "a message or a write of the peer was lost on the way (" + route_ + ")"));
  } else if (under_way_ == 0 && refused_since_ == 0 && now - heard_at_ > device_->patience()) {
    // An idle peer that is gone is found out by an operation that fails.
    heard_at_ = now;
    mark_ = Mark::kDue;
    Pump();
  } else if (refused_since_ != 0 && under_way_ == 0 && now - refused_since_ > kUnreachable) {
    PartLocked(Status(Code::kUnavailable,
                      "the peer's endpoint takes no operations: its process, or the way to it, "
                      "is gone (" +
                          route_ + ")"));
  }
}

}  // namespace rdma_transport::fabric::libfabric
