#include "fabric/shm/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/parts.h"
#include "fabric/host/identity.h"
#include "fabric/shm/address.h"

namespace rdma_transport::fabric::shm {
namespace {

constexpr int kRecordsPerPoll = 64;
// More than a socket of default size holds, so that everything sent before a notification is
// included.
constexpr int kMessagesInSocket = 1024;

}  // namespace

ShmChannel::ShmChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler,
                       std::string token)
    : device_(device), handler_(std::move(handler)), token_(std::move(token)) {}

ShmChannel::~ShmChannel() {
  Close(Status(Code::kCancelled, "the user of this channel has gone"));
  Finish();
}

std::string ShmChannel::Address() const {
  return ChannelAddress{device_->socket_name(), token_, host::HostIdentity()}.Encode();
}

Status ShmChannel::Advance(State from, State to) {
  return state_.compare_exchange_strong(from, to) ? OkStatus() : CloseReason();
}

Status ShmChannel::CloseReason() const {
  std::lock_guard<std::mutex> lock(state_mu_);
  return Status(Code::kAborted, "the channel was closed: " + close_reason_.message());
}

bool ShmChannel::Locate(const void* data, RemoteSpan* span) const {
  return device_->Locate(data, span);
}

void ShmChannel::Enqueue(const iovec* parts, int count, size_t length) {
  pending_bytes_ += length;
  pending_.push_back(Joined(parts, count));
  has_pending_.store(true);
}

Status ShmChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                          After /*after*/) {
  const size_t length = TotalLength(parts, count);
  if (length > kMaxRecord) return Status(Code::kInvalidArgument, "a notification too long");
  if (state_.load(std::memory_order_acquire) != State::kConnected || device_->Foreign()) {
    return NotConnected();
  }
  {
    std::lock_guard<std::mutex> lock(send_mu_);
    if (!pending_.empty() || !outgoing_.Push(parts, count, length)) {
      RDMA_RETURN_IF_ERROR(CheckQueue(length, pending_bytes_));
      const bool first = pending_.empty();
      Enqueue(parts, count, length);
      if (first) FlushPending();
    }
    const uint64_t notified = notified_.fetch_add(1) + 1;
    if (number != nullptr) *number = notified;
  }
  if (urgency == Urgency::kLazy) unrung_.store(true);
  Attend();
  if (urgency == Urgency::kWake) {
    RingPeer();
    return OkStatus();
  }
  // The polling thread wakes the peer before it sleeps. If it already sleeps, wake the peer here.
  if (device_->Asleep()) RingIfLazy();
  return OkStatus();
}

Backlog ShmChannel::backlog() const {
  if (state_.load(std::memory_order_acquire) != State::kConnected) return {};
  std::lock_guard<std::mutex> lock(send_mu_);
  // The consumer writes one of the two numbers and is not trusted.
  return {kRingCapacity, std::min<uint64_t>(outgoing_.Used(), kRingCapacity), pending_bytes_};
}

void ShmChannel::RingIfLazy() {
  if (unrung_.load(std::memory_order_relaxed) && unrung_.exchange(false)) RingPeer();
}

// A peer whose socket is full has messages to read, so it does not sleep for long.
void ShmChannel::RingPeer() {
  if (!outgoing_.TakeConsumerSleeps()) return;
  const Wake wake = {MessageType::kWake};
  std::lock_guard<std::mutex> lock(socket_mu_);
  if (socket_ != nullptr) SendMessage(socket_->get(), AsBytes(wake)).IgnoreError();
}

// The consumer is not trusted.
uint64_t ShmChannel::Delivered() const {
  if (!attached_.load(std::memory_order_acquire)) return 0;
  return std::min(outgoing_.Taken(), notified_.load(std::memory_order_relaxed));
}

std::shared_ptr<const void> ShmChannel::Hold() const {
  std::lock_guard<std::mutex> lock(socket_mu_);
  return presence_;
}

// Requires send_mu_. Records that do not fit stay queued until the consumer reports room.
void ShmChannel::FlushPending() {
  bool asked = false;
  while (!pending_.empty()) {
    std::string& record = pending_.front();
    const iovec part = {record.data(), record.size()};
    if (!outgoing_.Push(&part, 1, record.size())) {
      if (asked) return;
      outgoing_.WaitForRoom();
      asked = true;
      continue;
    }
    pending_bytes_ -= record.size();
    pending_.pop_front();
  }
  has_pending_.store(false);
}

Status ShmChannel::Transfer(const RemoteSpan& span, bool write, char* local, uint64_t cookie) {
  if (closed()) return NotConnected();
  const std::shared_ptr<PeerRegion> region = peer_memory_.Find(span.key);
  Status status = region == nullptr ? Status(Code::kNotFound, "the peer shares no such region")
                  : write           ? region->Write(local, span.offset, span.length)
                                    : region->Read(span.offset, local, span.length);
  if (status.code() == Code::kUnavailable) return status;
  if (status.code() == Code::kNotFound) status = {Code::kInvalidArgument, status.message()};
  if (write && (!status.ok() || cookie == kNobodyWaits)) return status;
  {
    std::lock_guard<std::mutex> lock(state_mu_);
    // After Close() no completion would be delivered.
    if (closed()) return NotConnected();
    completions_.push_back({cookie, std::move(status)});
    has_completions_.store(true);
  }
  Attend();
  // Otherwise the polling thread looks before it sleeps.
  if (device_->Asleep()) device_->Wake();
  return OkStatus();
}

Status ShmChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  return Transfer(source, /*write=*/false, destination, cookie);
}

Status ShmChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Transfer(destination, /*write=*/true, const_cast<char*>(source), cookie);
}

std::shared_ptr<RemoteRegion> ShmChannel::Remote(uint64_t key) const {
  return closed() ? nullptr : peer_memory_.Find(key);
}

MappedSpan ShmChannel::Map(const RemoteSpan& span) {
  std::shared_ptr<Mapping> mapping = peer_memory_.FindMapping(span);
  if (mapping == nullptr) {
    // The region was sent before the notification that names it, so it is already in the socket.
    // HandleSocket() finds an end of the stream again and handles it.
    const Status drained = DrainSocket(kMessagesInSocket);
    if (!drained.ok() && drained.code() != Code::kUnavailable) EndAfterRing(drained);
    mapping = peer_memory_.FindMapping(span);
  }
  if (mapping == nullptr) return MappedSpan();
  const char* data = mapping->address() + span.offset;
  return {data, std::move(mapping)};
}

bool ShmChannel::Owns(const void* data, RemoteSpan* span) const {
  const Mapping* mapping = Window::Get().Find(data);
  if (mapping == nullptr || !(mapping->owner() == peer())) return false;
  span->key = mapping->key();
  span->offset = static_cast<uint64_t>(static_cast<const char*>(data) - mapping->address());
  span->length = mapping->length() - span->offset;
  return true;
}

void ShmChannel::Attend() {
  if (!attended_.load() && !attended_.exchange(true)) device_->Attend(this);
}

void ShmChannel::SetActive(bool active) {
  listed_ = active;
  attended_.store(active);
  if (!attached()) return;
  active ? LowerFlag() : RaiseFlag();
}

bool ShmChannel::Busy() const {
  if (closed()) return !finished();
  return HasWork() || has_pending_.load() || unrung_.load() || notified_.load() != confirmed_;
}

int ShmChannel::Poll() {
  if (!HasWork() && !has_pending_.load(std::memory_order_relaxed) && Delivered() == confirmed_) {
    return 0;
  }
  worked_ = true;
  const auto handler = handler_.lock();
  if (handler == nullptr) {
    Close(Status(Code::kCancelled, "the user of this channel has gone"));
    return 0;
  }
  int handled = PollCompletions(handler.get());
  if (state_.load(std::memory_order_acquire) == State::kConnected) {
    Confirm(handler.get());
    handled += PollPending();
    handled += PollRing(handler.get());
  }
  if (ending_ && (incoming_.Empty() || incoming_.consumed() >= ending_at_)) Close(end_reason_);
  return handled;
}

int ShmChannel::PollCompletions(ChannelHandler* handler) {
  if (!has_completions_.load(std::memory_order_relaxed)) return 0;
  std::deque<Completion> completions;
  {
    std::lock_guard<std::mutex> lock(state_mu_);
    completions.swap(completions_);
    has_completions_.store(false);
  }
  for (const Completion& completion : completions) {
    handler->OnTransfer(completion.cookie, completion.status);
  }
  return static_cast<int>(completions.size());
}

void ShmChannel::Confirm(ChannelHandler* handler) {
  const uint64_t delivered = Delivered();
  if (delivered <= confirmed_) return;
  confirmed_ = delivered;
  handler->OnDelivered(delivered);
}

int ShmChannel::PollPending() {
  if (!has_pending_.load(std::memory_order_relaxed)) return 0;
  std::lock_guard<std::mutex> lock(send_mu_);
  const size_t before = pending_.size();
  FlushPending();
  const size_t sent = before - pending_.size();
  if (sent > 0) RingPeer();
  return static_cast<int>(sent);
}

int ShmChannel::PollRing(ChannelHandler* handler) {
  int records = 0;
  while (records < kRecordsPerPoll) {
    const char* data = nullptr;
    size_t length = 0;
    const Status status = incoming_.Peek(&data, &length);
    if (!status.ok()) {
      Close(status);
      return records;
    }
    if (data == nullptr) break;
    handler->OnNotify(data, length);
    // The notification that closed the channel does not count as delivered, so the peer sends it
    // again by other means.
    if (closed()) return records;
    incoming_.Pop();
    ++records;
  }
  if (records > 0 && incoming_.TakeProducerWaits()) RingPeer();
  return records;
}

bool ShmChannel::HasWork() const {
  if (closed()) return !finished() && (!reported_ || eof_.load());
  if (ending_ || has_completions_.load()) return true;
  if (state_.load() != State::kConnected) return false;
  // The consumer may have reported room before it could see the sleep flag.
  return !incoming_.Empty() || (has_pending_.load() && outgoing_.RoomReported());
}

// Records that the peer wrote before the end are still delivered, up to the capacity of the ring.
void ShmChannel::EndAfterRing(const Status& reason) {
  if (closed() || ending_) return;
  ending_ = true;
  ending_at_ = incoming_.consumed() + kRingCapacity;
  end_reason_ = reason;
  Attend();
}

// Only the fabric may close with Unavailable, which means that the peer no longer accesses this
// memory.
void ShmChannel::Close(const Status& reason) {
  const bool true_code = reason.code() != Code::kUnavailable || eof_.load();
  {
    std::lock_guard<std::mutex> lock(state_mu_);
    if (state_.exchange(State::kClosed) == State::kClosed) return;
    close_reason_ = true_code ? reason : Status(Code::kAborted, reason.message());
  }
  peer_memory_.Close();
  {
    std::lock_guard<std::mutex> lock(socket_mu_);
    if (socket_ != nullptr && !device_->Foreign()) {
      Bye bye = {};
      bye.type = MessageType::kBye;
      bye.code = static_cast<int32_t>(reason.code());
      const size_t length = std::min(reason.message().size(), sizeof(bye.reason) - 1);
      std::memcpy(bye.reason, reason.message().data(), length);
      SendLocked(AsBytes(bye));
    }
  }
  Attend();
  device_->Wake();
}

// HasWork() keeps the polling thread here until the last copy has ended. The memory that copies use
// may be freed in OnClosed().
void ShmChannel::FinishClose() {
  if (finished() || !peer_memory_.Close()) return;
  const auto handler = handler_.lock();
  Status reason;
  {
    std::lock_guard<std::mutex> lock(state_mu_);
    reason = close_reason_;
  }
  peer_memory_.Clear();
  const bool died = reason.code() == Code::kUnavailable;
  if (!std::exchange(reported_, true) && handler != nullptr) {
    // A dead process needs no notification again.
    handler->OnDelivered(died ? notified_.load() : Delivered());
    handler->OnClosed(reason);
  }
  bool all_sent = false;
  const bool released = EndStream(&all_sent);
  // Without a handler, the peer uses no memory of this process.
  if (!released && (handler != nullptr || !all_sent)) return;
  if (handler != nullptr && !died) handler->OnReleased();
  Finish();
}

// Releases the peer's memory once the peer is notified of the end. Returns true if the peer has
// released this side's memory.
bool ShmChannel::EndStream(bool* all_sent) {
  std::shared_ptr<const void> presence;  // released after the lock
  std::lock_guard<std::mutex> lock(socket_mu_);
  *all_sent = unsent_.empty() || eof_.load();
  if (*all_sent) presence.swap(presence_);
  return socket_ == nullptr || eof_.load();
}

void ShmChannel::Finish() {
  std::shared_ptr<const SocketEnd> socket;
  {
    std::lock_guard<std::mutex> lock(socket_mu_);
    socket.swap(socket_);
  }
  if (socket != nullptr && !eof_.load()) device_->Unwatch(socket->get());
  finished_.store(true);
  device_->Remove(this);
}

}  // namespace rdma_transport::fabric::shm
