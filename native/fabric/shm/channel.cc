#include "fabric/shm/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "fabric/host/identity.h"
#include "fabric/host/memory_file.h"
#include "fabric/shm/address.h"
#include "fabric/shm/device.h"

namespace rdma_transport::fabric::shm {
namespace {

// What may wait for room in the peer's ring before Notify() refuses.
constexpr size_t kPendingLimit = size_t{256} << 20;
constexpr int kRecordsPerPoll = 64;

size_t TotalLength(const iovec* parts, int count) {
  size_t length = 0;
  for (int i = 0; i < count; ++i) length += parts[i].iov_len;
  return length;
}

}  // namespace

ShmChannel::ShmChannel(ShmDevice* device, std::weak_ptr<ChannelHandler> handler, std::string token)
    : device_(device), handler_(std::move(handler)), token_(std::move(token)) {}

ShmChannel::~ShmChannel() { device_->Unwatch(this); }

std::string ShmChannel::Address() const {
  return ChannelAddress{device_->socket_name(), token_, host::HostIdentity()}.Encode();
}

Status ShmChannel::Connect(std::string_view peer_address, Role role) {
  ChannelAddress address;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &address));
  RDMA_RETURN_IF_ERROR(incoming_.Create());
  peer_token_ = address.token;
  passive_ = role == Role::kPassive;
  if (passive_) {
    RDMA_RETURN_IF_ERROR(Advance(State::kNew, State::kConnecting));
    device_->Expect(this);
    return OkStatus();
  }
  host::FileDescriptor socket;
  RDMA_RETURN_IF_ERROR(ConnectTo(address.socket_name, &socket));
  RDMA_RETURN_IF_ERROR(CheckPeerUser(socket.get()));
  {
    std::lock_guard<std::mutex> lock(socket_mu_);
    socket_ = std::move(socket);
  }
  // Nothing is said on behalf of a channel that was closed meanwhile without a word to the peer.
  RDMA_RETURN_IF_ERROR(Advance(State::kNew, State::kConnecting));
  RDMA_RETURN_IF_ERROR(SendEnds(MessageType::kHello));
  return device_->Watch(this);
}

// Shows the peer its own token, and hands over this side's ring and doorbell.
Status ShmChannel::SendEnds(MessageType type) {
  Hello hello = {};
  hello.type = type;
  hello.device_id = device_->id();
  std::memcpy(hello.token, peer_token_.data(), sizeof(hello.token));
  std::lock_guard<std::mutex> lock(socket_mu_);
  return SendMessage(
      socket_.get(), AsBytes(hello),
      {incoming_.fd(), device_->doorbell().page_fd(), device_->doorbell().event_fd()});
}

Status ShmChannel::TakePeerEnds(Message* message) {
  Hello hello;
  RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &hello));
  if (std::string_view(hello.token, sizeof(hello.token)) != token_ ||
      message->descriptors.size() != 3) {
    return Status(Code::kPermissionDenied, "the peer did not prove that it is the one asked for");
  }
  peer_device_id_.store(hello.device_id);
  RDMA_RETURN_IF_ERROR(host::CheckMemoryFile(message->descriptors[0].get(), kRingFileLength));
  std::lock_guard<std::mutex> lock(send_mu_);
  RDMA_RETURN_IF_ERROR(outgoing_.Attach(message->descriptors[0].get()));
  return peer_doorbell_.Attach(std::move(message->descriptors[1]),
                               std::move(message->descriptors[2]));
}

Status ShmChannel::Attach(host::FileDescriptor socket, Message* hello) {
  RDMA_RETURN_IF_ERROR(TakePeerEnds(hello));
  {
    std::lock_guard<std::mutex> lock(socket_mu_);
    socket_ = std::move(socket);
  }
  if (closed()) return CloseReason();
  RDMA_RETURN_IF_ERROR(SendEnds(MessageType::kAccept));
  return BecomeConnected();
}

Status ShmChannel::Advance(State from, State to) {
  return state_.compare_exchange_strong(from, to) ? OkStatus() : CloseReason();
}

Status ShmChannel::CloseReason() const {
  std::lock_guard<std::mutex> lock(state_mu_);
  return Status(Code::kAborted, "the channel was closed: " + close_reason_.message());
}

Status ShmChannel::BecomeConnected() {
  incoming_.CloseFile();
  const auto handler = handler_.lock();
  if (handler == nullptr) return Status(Code::kCancelled, "nobody wants this channel any more");
  RDMA_RETURN_IF_ERROR(Advance(State::kConnecting, State::kConnected));
  handler->OnConnected();
  return OkStatus();
}

Status ShmChannel::Share(uint64_t key) {
  std::lock_guard<std::mutex> lock(socket_mu_);
  if (closed() || !socket_.valid()) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  if (shared_.count(key) != 0) return OkStatus();
  RegionMessage message = {};
  message.type = MessageType::kRegion;
  message.key = key;
  int fd = -1;
  Access access = Access::kRemoteRead;
  if (!device_->FindRegion(key, &message.length, &access, &fd)) {
    return Status(Code::kInternal, "sharing a region that does not exist");
  }
  message.writable = access == Access::kRemoteReadWrite ? 1 : 0;
  RDMA_RETURN_IF_ERROR(SendMessage(socket_.get(), AsBytes(message), {fd}));
  shared_.insert(key);
  return OkStatus();
}

bool ShmChannel::Locate(const void* data, RemoteSpan* span) const {
  return device_->Locate(data, span);
}

void ShmChannel::Enqueue(const iovec* parts, int count, size_t length) {
  std::string record;
  record.reserve(length);
  for (int i = 0; i < count; ++i) {
    record.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  pending_bytes_ += length;
  pending_.push_back(std::move(record));
  has_pending_.store(true);
}

Status ShmChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number) {
  const size_t length = TotalLength(parts, count);
  if (length > kMaxRecord) return Status(Code::kInvalidArgument, "a notification too long");
  if (state_.load(std::memory_order_acquire) != State::kConnected || device_->Foreign()) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  {
    std::lock_guard<std::mutex> lock(send_mu_);
    if (!pending_.empty() || !outgoing_.Push(parts, count, length)) {
      if (pending_bytes_ + length > kPendingLimit) {
        return Status(Code::kResourceExhausted, "the peer does not take its notifications");
      }
      const bool first = pending_.empty();
      Enqueue(parts, count, length);
      if (first) FlushPending();
    }
    ++notified_;
    if (number != nullptr) *number = notified_;
  }
  if (urgency == Urgency::kWake) {
    peer_doorbell_.Ring();
    return OkStatus();
  }
  // The polling thread rings before it sleeps; if it sleeps already, this is the last chance.
  unrung_.store(true);
  if (device_->doorbell().Asleep()) RingIfLazy();
  return OkStatus();
}

Backlog ShmChannel::backlog() const {
  if (state_.load(std::memory_order_acquire) != State::kConnected) return {};
  std::lock_guard<std::mutex> lock(send_mu_);
  // The consumer writes one of the two numbers, and need not be trusted.
  return {kRingCapacity, std::min<uint64_t>(outgoing_.Used(), kRingCapacity), pending_bytes_};
}

void ShmChannel::RingIfLazy() {
  if (unrung_.load(std::memory_order_relaxed) && unrung_.exchange(false)) peer_doorbell_.Ring();
}

// With send_mu_ held. What does not fit waits until the consumer rings for room.
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
  const std::shared_ptr<Mapping> mapping = FindMapping(span.key);
  Status status;
  if (mapping == nullptr || span.offset > mapping->length() ||
      span.length > mapping->length() - span.offset) {
    status = Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
    if (write) return status;
  } else if (write) {
    std::memcpy(mapping->writable_address() + span.offset, local, span.length);
    if (cookie == kNobodyWaits) return status;
  } else {
    std::memcpy(local, mapping->address() + span.offset, span.length);
  }
  {
    std::lock_guard<std::mutex> lock(state_mu_);
    // After the end nobody would tell it.
    if (closed()) return Status(Code::kUnavailable, "the channel is not connected");
    completions_.push_back({cookie, std::move(status)});
    has_completions_.store(true);
  }
  device_->Wake();
  return OkStatus();
}

Status ShmChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  return Transfer(source, /*write=*/false, destination, cookie);
}

Status ShmChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Transfer(destination, /*write=*/true, const_cast<char*>(source), cookie);
}

std::shared_ptr<Mapping> ShmChannel::FindMapping(uint64_t key) {
  std::lock_guard<std::mutex> lock(state_mu_);
  const auto found = mappings_.find(key);
  return found == mappings_.end() ? nullptr : found->second;
}

MappedSpan ShmChannel::Map(const RemoteSpan& span) {
  std::shared_ptr<Mapping> mapping = FindMapping(span.key);
  if (mapping == nullptr) {
    // The region was sent before the notification that names it, so it is in the socket by now.
    // An end of the connection is met again, and handled, in HandleSocket().
    const Status drained = DrainSocket();
    if (!drained.ok() && drained.code() != Code::kUnavailable) Close(drained);
    mapping = FindMapping(span.key);
  }
  if (mapping == nullptr || span.offset > mapping->length() ||
      span.length > mapping->length() - span.offset) {
    return MappedSpan();
  }
  const char* data = mapping->address() + span.offset;
  return {data, std::move(mapping)};
}

bool ShmChannel::Owns(const void* data, RemoteSpan* span) const {
  const Mapping* mapping = Window::Get().Find(data);
  if (mapping == nullptr || mapping->owner() != peer_device_id_.load()) return false;
  span->key = mapping->key();
  span->offset = static_cast<uint64_t>(static_cast<const char*>(data) - mapping->address());
  span->length = mapping->length() - span->offset;
  return true;
}

int ShmChannel::Poll() {
  if (!HasWork() && !has_pending_.load(std::memory_order_relaxed)) return 0;
  const auto handler = handler_.lock();
  if (handler == nullptr) {
    Close(Status(Code::kCancelled, "nobody wants this channel any more"));
    return 0;
  }
  int handled = 0;
  if (has_completions_.load(std::memory_order_relaxed)) {
    std::deque<Completion> completions;
    {
      std::lock_guard<std::mutex> lock(state_mu_);
      completions.swap(completions_);
      has_completions_.store(false);
    }
    for (const Completion& completion : completions) {
      handler->OnTransfer(completion.cookie, completion.status);
      ++handled;
    }
  }
  if (state_.load(std::memory_order_acquire) != State::kConnected) return handled;
  if (has_pending_.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> lock(send_mu_);
    const size_t before = pending_.size();
    FlushPending();
    if (pending_.size() != before) peer_doorbell_.Ring();
  }
  int records = 0;
  while (records < kRecordsPerPoll) {
    const char* data = nullptr;
    size_t length = 0;
    const Status status = incoming_.Peek(&data, &length);
    if (!status.ok()) {
      Close(status);
      return handled;
    }
    if (data == nullptr) break;
    handler->OnNotify(data, length);
    if (closed()) return handled;
    incoming_.Pop();
    ++records;
  }
  if (records > 0 && incoming_.TakeProducerWaits()) peer_doorbell_.Ring();
  return handled + records;
}

bool ShmChannel::HasWork() const {
  return closed() || has_completions_.load() ||
         (state_.load() == State::kConnected && !incoming_.Empty());
}

void ShmChannel::HandleSocket() {
  const Status status = DrainSocket();
  if (status.ok()) return;
  // What a dead peer still wrote into the ring counts.
  while (Poll() > 0) {
  }
  Close(status);
}

// Handles the messages that are there; the first error ends it.
Status ShmChannel::DrainSocket() {
  while (!closed()) {
    Message message;
    {
      std::lock_guard<std::mutex> lock(socket_mu_);
      if (!socket_.valid()) return OkStatus();
      const Status status = ReceiveMessage(socket_.get(), &message);
      if (status.code() == Code::kNotFound) return OkStatus();
      RDMA_RETURN_IF_ERROR(status);
    }
    RDMA_RETURN_IF_ERROR(HandleMessage(&message));
  }
  return OkStatus();
}

Status ShmChannel::HandleMessage(Message* message) {
  switch (TypeOf(message->bytes)) {
    case MessageType::kAccept: {
      if (passive_ || state_.load() != State::kConnecting) break;
      RDMA_RETURN_IF_ERROR(TakePeerEnds(message));
      return BecomeConnected();
    }
    case MessageType::kRegion:
      return AddMapping(message);
    case MessageType::kForget: {
      Forget forget;
      RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &forget));
      std::lock_guard<std::mutex> lock(state_mu_);
      mappings_.erase(forget.key);
      return OkStatus();
    }
    case MessageType::kBye: {
      Bye bye;
      RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &bye));
      bye.reason[sizeof(bye.reason) - 1] = '\0';
      // Not Unavailable: the peer lives, and may still read what it was lent.
      return Status(Code::kAborted, std::string("the peer closed the channel: ") + bye.reason);
    }
    default:
      break;
  }
  return Status(Code::kDataLoss, "an unexpected message on the peer's local socket");
}

Status ShmChannel::AddMapping(Message* message) {
  RegionMessage region;
  RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &region));
  if (message->descriptors.size() != 1) {
    return Status(Code::kDataLoss, "a region without its memory");
  }
  const int fd = message->descriptors[0].get();
  RDMA_RETURN_IF_ERROR(host::CheckMemoryFile(fd, region.length));
  std::shared_ptr<Mapping> mapping;
  RDMA_RETURN_IF_ERROR(Window::Get().Map(fd, region.length, region.writable != 0, region.key,
                                         peer_device_id_.load(), &mapping));
  std::lock_guard<std::mutex> lock(state_mu_);
  mappings_[region.key] = std::move(mapping);
  return OkStatus();
}

void ShmChannel::ForgetRegion(uint64_t key) {
  std::lock_guard<std::mutex> lock(socket_mu_);
  if (shared_.erase(key) == 0 || !socket_.valid()) return;
  Forget forget = {};
  forget.type = MessageType::kForget;
  forget.key = key;
  // A peer that does not hear it only keeps its mapping a while longer.
  SendMessage(socket_.get(), AsBytes(forget), {}).IgnoreError();
}

void ShmChannel::Close(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(state_mu_);
    if (state_.exchange(State::kClosed) == State::kClosed) return;
    close_reason_ = reason;
  }
  {
    std::lock_guard<std::mutex> lock(socket_mu_);
    if (socket_.valid()) {
      Bye bye = {};
      bye.type = MessageType::kBye;
      bye.code = static_cast<int32_t>(reason.code());
      const size_t length = std::min(reason.message().size(), sizeof(bye.reason) - 1);
      std::memcpy(bye.reason, reason.message().data(), length);
      SendMessage(socket_.get(), AsBytes(bye), {}).IgnoreError();
    }
  }
  device_->Wake();
}

void ShmChannel::FinishClose() {
  Status reason;
  {
    std::lock_guard<std::mutex> lock(state_mu_);
    if (finished_.exchange(true)) return;
    reason = close_reason_;
    mappings_.clear();
  }
  device_->Unwatch(this);
  {
    std::lock_guard<std::mutex> lock(socket_mu_);
    socket_.Reset();
  }
  if (const auto handler = handler_.lock()) handler->OnClosed(reason);
}

}  // namespace rdma_transport::fabric::shm
