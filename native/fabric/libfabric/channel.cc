#include "fabric/libfabric/channel.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// Most confirmations go with a message in the other direction, which seldom takes longer.
constexpr Nanos kConfirmationDelay = 5 * kMillisecond;

}  // namespace

Status LibfabricChannel::NotConnected() {
  return Status(Code::kUnavailable, "the channel is not connected");
}

LibfabricChannel::LibfabricChannel(Endpoint* endpoint, std::weak_ptr<ChannelHandler> handler,
                                   uint32_t number)
    : endpoint_(endpoint),
      handler_(std::move(handler)),
      number_(number),
      tag_(std::max<uint64_t>(Random64(), 1)),
      token_(RandomBytes(kTokenLength)),
      inbox_(endpoint->frames()) {}

LibfabricChannel::~LibfabricChannel() {
  if (peer_ != FI_ADDR_UNSPEC) endpoint_->domain().Leave(remote_.name);
}

// --- Connecting ---

std::string LibfabricChannel::Address() const {
  const Domain& domain = endpoint_->domain();
  ChannelAddress address;
  address.provider = domain.provider();
  address.protocol = domain.traits().protocol;
  address.protocol_version = domain.traits().protocol_version;
  address.format = domain.traits().address_format;
  address.name = domain.name();
  address.tag = tag_;
  address.number = number_;
  address.frames = endpoint_->frames();
  address.remote_data = domain.traits().remote_data;
  address.mark_address = endpoint_->mark().base();
  address.mark_key = endpoint_->mark().key();
  address.token = token_;
  return address.Encode();
}

Status LibfabricChannel::Connect(std::string_view peer_address, Role role, const Terms& terms) {
  ChannelAddress remote;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &remote));
  Domain& domain = endpoint_->domain();
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kNew) {
    return Status(Code::kAborted, "the channel was closed: " + close_reason_.message());
  }
  RDMA_RETURN_IF_ERROR(domain.Reach(remote.name, &peer_));
  remote_ = std::move(remote);
  passive_ = role == Role::kPassive;
  remote_data_ = remote_.remote_data && domain.traits().remote_data;
  write_end_ = terms.write_end;
  greeting_ = Greeting(terms.key, role, token_, remote_.token);
  route_ =
      domain.provider() + " " + domain.Text(domain.name()) + " -> " + domain.Text(remote_.name);
  outbox_.Attach(remote_.frames);
  state_.store(State::kConnecting);
  if (passive_) return OkStatus();
  return Greet(RecordKind::kHello);
}

Status LibfabricChannel::Greet(RecordKind kind) {
  const std::string& shown = greeting_.own();
  const iovec part = {const_cast<char*>(shown.data()), shown.size()};
  return AddRecord(kind, &part, 1, 0, /*now=*/true);
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
  if (handler == nullptr) return Status(Code::kCancelled, "the user of this channel has gone");
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() != State::kConnecting) return OkStatus();
    if (passive_) RDMA_RETURN_IF_ERROR(Greet(RecordKind::kAccept));
    state_.store(State::kConnected);
  }
  greeted_ = true;
  heard_at_ = Now();
  handler->OnConnected();
  return OkStatus();
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
  RDMA_RETURN_IF_ERROR(endpoint_->memory().Share(key, &record, &registration));
  std::lock_guard<std::mutex> lock(mu_);
  if (!Connected()) return NotConnected();
  if (shared_.count(key) != 0) return OkStatus();
  const iovec part = {&record, sizeof(record)};
  RDMA_RETURN_IF_ERROR(AddRecord(RecordKind::kRegion, &part, 1, 0, /*now=*/false));
  shared_[key] = std::move(registration);
  return OkStatus();
}

void LibfabricChannel::WithdrawRegion(uint64_t key) {
  std::shared_ptr<Registration> ended;  // after the lock is released
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = shared_.find(key);
  if (found == shared_.end()) return;
  ended = std::move(found->second);
  shared_.erase(found);
  if (!Connected()) return;
  const iovec part = {&key, sizeof(key)};
  // If the notification is lost, the peer uses a key that the provider refuses.
  AddRecord(RecordKind::kWithdraw, &part, 1, 0, /*now=*/false).IgnoreError();
}

void LibfabricChannel::Keep(OwnerRef memory) {
  std::lock_guard<std::mutex> lock(mu_);
  if (Busy()) kept_.push_back(std::move(memory));
}

bool LibfabricChannel::Locate(const void* data, RemoteSpan* span) const {
  return endpoint_->domain().Usable() && endpoint_->memory().Locate(data, span);
}

// --- One-sided operations ---

Status LibfabricChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  const Status refused = Transfer(/*write=*/false, source, destination, cookie);
  if (refused.ok() || refused.code() == Code::kUnavailable) return refused;
  std::lock_guard<std::mutex> lock(mu_);
  transfers_.End(cookie, refused);
  Attend();
  endpoint_->sleeper().Wake();
  return OkStatus();
}

Status LibfabricChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Transfer(/*write=*/true, destination, const_cast<char*>(source), cookie);
}

Status LibfabricChannel::Check(const void* local, const RemoteSpan& span, Access access) const {
  void* descriptor = nullptr;
  RDMA_RETURN_IF_ERROR(endpoint_->memory().FindLocal(local, span.length, &descriptor));
  std::lock_guard<std::mutex> lock(mu_);
  return Connected() ? transfers_.Check(span, access) : NotConnected();
}

Status LibfabricChannel::Transfer(bool write, const RemoteSpan& span, char* local,
                                  uint64_t cookie) {
  void* descriptor = nullptr;
  const Status found = endpoint_->memory().FindLocal(local, span.length, &descriptor);
  std::lock_guard<std::mutex> lock(mu_);
  if (!Connected()) return NotConnected();
  RDMA_RETURN_IF_ERROR(found);
  RDMA_RETURN_IF_ERROR(transfers_.Begin(write, span, local, descriptor, cookie));
  Pump();
  return OkStatus();
}

// --- Completions and arrivals ---

void LibfabricChannel::OnEnded(const Operation& operation, const Status& status) {
  std::vector<OwnerRef> kept;  // dropped after unlocking
  {
    std::lock_guard<std::mutex> lock(mu_);
    --under_way_;
    if (operation.kind == Kind::kMark || operation.kind == Kind::kLastMark) {
      --marks_;
      if (operation.kind == Kind::kLastMark || !status.ok()) {
        mark_ = Mark::kRead;
      } else if (mark_ == Mark::kUnderWay) {
        mark_ = Mark::kNone;
      }
    } else if (status.ok() && operation.kind != Kind::kMessage) {
      transfers_.OnEnded(operation.cookie, operation.sequence);
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
      confirm_due_ = true;
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
  DueBy(now + kConfirmationDelay);
  if (confirm_at_once || unconfirmed >= endpoint_->frames() / 4) Confirm();
}

void LibfabricChannel::Confirm() {
  if (read_.load() == confirmed_.read && !OwesWrites()) return;
  if (!Serving(state_.load())) return;
  // What is queued already confirms, too, unless it must wait for what the peer confirms.
  outbox_.Close();
  if (!MessageMayLeave()) confirm_due_ = true;
  Pump();
}

// A message after which nothing follows may be lost, too, and so may its confirmation.
void LibfabricChannel::AskForConfirmation(Nanos now) {
  const uint64_t first = outbox_.first_unconfirmed();
  if (first != unconfirmed_ || first == 0) {
    unconfirmed_ = first;
    asked_at_ = now;
  } else if (now - asked_at_ > endpoint_->peer_timeout() / 2) {
    asked_at_ = now;
    confirm_due_ = asks_ = true;
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
      if (!greeted_) break;
      std::lock_guard<std::mutex> lock(mu_);
      return transfers_.AddRegion(record);
    }
    case RecordKind::kWithdraw: {
      std::lock_guard<std::mutex> lock(mu_);
      return transfers_.RemoveRegion(record);
    }
    case RecordKind::kHello:
    case RecordKind::kAccept:
      return HandleGreeting(kind, record);
    case RecordKind::kPart:
      break;
  }
  return Status(Code::kDataLoss, "an unexpected record among the notifications");
}

bool LibfabricChannel::DeliverNews() {
  std::vector<host::TransferEnd> ended;
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

}  // namespace rdma_transport::fabric::libfabric
