// What a channel does on its socket: it connects, shares regions, and exchanges messages.
#include <cstring>
#include <utility>

#include "base/log.h"
#include "fabric/host/memory_file.h"
#include "fabric/shm/address.h"
#include "fabric/shm/channel.h"

namespace rdma_transport::fabric::shm {
namespace {

// Messages that are handled before other channels get their turn.
constexpr int kMessagesPerTurn = 64;

}  // namespace

Status ShmChannel::Connect(std::string_view peer_address, Role role, const Terms& terms) {
  ChannelAddress address;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &address));
  RDMA_RETURN_IF_ERROR(incoming_.Create());
  greeting_ = Greeting(terms.key, role, token_, address.token);
  passive_ = role == Role::kPassive;
  if (passive_) return Advance(State::kNew, State::kConnecting);
  host::FileDescriptor socket;
  pid_t process = 0;
  RDMA_RETURN_IF_ERROR(ConnectTo(address.socket_name, &socket));
  RDMA_RETURN_IF_ERROR(CheckPeerUser(socket.get(), &process));
  const auto end = TakeSocket(std::move(socket), process);
  // Do not greet on behalf of a channel that was closed meanwhile.
  RDMA_RETURN_IF_ERROR(Advance(State::kNew, State::kConnecting));
  RDMA_RETURN_IF_ERROR(SendEnds(MessageType::kHello));
  return device_->Watch(this, end->get());
}

std::shared_ptr<const SocketEnd> ShmChannel::TakeSocket(host::FileDescriptor socket,
                                                        pid_t process) {
  peer_process_.store(process);
  auto end = std::make_shared<SocketEnd>(std::move(socket));
  std::lock_guard<std::mutex> lock(socket_mu_);
  socket_ = end;
  presence_ = std::make_shared<Presence>(end);
  return end;
}

// Sends this side's greeting and ring to the peer.
Status ShmChannel::SendEnds(MessageType type) {
  Hello hello = {};
  hello.type = type;
  hello.device_id = device_->id();
  std::memcpy(hello.greeting, greeting_.own().data(), sizeof(hello.greeting));
  std::lock_guard<std::mutex> lock(socket_mu_);
  if (socket_ == nullptr) return CloseReason();
  return SendMessage(socket_->get(), AsBytes(hello), incoming_.fd());
}

Status ShmChannel::TakePeerEnds(Message* message) {
  Hello hello;
  RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &hello));
  if (!greeting_.IsPeers(std::string_view(hello.greeting, sizeof(hello.greeting))) ||
      message->descriptors.size() != 1) {
    return Status(Code::kPermissionDenied, "the peer did not prove that it is the one asked for");
  }
  peer_device_id_.store(hello.device_id);
  const int ring = message->descriptors[0].get();
  RDMA_RETURN_IF_ERROR(host::CheckMemoryFile(ring, kRingFileLength, /*writable=*/true));
  std::lock_guard<std::mutex> lock(send_mu_);
  RDMA_RETURN_IF_ERROR(outgoing_.Attach(ring));
  attached_.store(true, std::memory_order_release);
  return OkStatus();
}

Status ShmChannel::Attach(host::FileDescriptor socket, pid_t process, Message* hello) {
  RDMA_RETURN_IF_ERROR(TakePeerEnds(hello));
  const auto end = TakeSocket(std::move(socket), process);
  if (closed()) return CloseReason();
  RDMA_RETURN_IF_ERROR(SendEnds(MessageType::kAccept));
  RDMA_RETURN_IF_ERROR(device_->Watch(this, end->get()));
  return BecomeConnected();
}

Status ShmChannel::BecomeConnected() {
  incoming_.CloseFile();
  const auto handler = handler_.lock();
  if (handler == nullptr) return Status(Code::kCancelled, "the user of this channel has gone");
  RDMA_RETURN_IF_ERROR(Advance(State::kConnecting, State::kConnected));
  handler->OnConnected();
  return OkStatus();
}

Status ShmChannel::Share(uint64_t key) {
  std::lock_guard<std::mutex> lock(socket_mu_);
  if (closed() || socket_ == nullptr) return NotConnected();
  if (shared_.count(key) != 0) return OkStatus();
  if (refused_.count(key) != 0) {
    return Status(Code::kResourceExhausted, "the peer has no room to map this memory");
  }
  RegionMessage message = {};
  message.type = MessageType::kRegion;
  message.key = key;
  int fd = -1;
  Access access = Access::kRemoteRead;
  if (!device_->FindRegion(key, &message.length, &access, &fd)) {
    return Status(Code::kInternal, "sharing a region that does not exist");
  }
  message.writable = access == Access::kRemoteReadWrite ? 1 : 0;
  RDMA_RETURN_IF_ERROR(SendMessage(socket_->get(), AsBytes(message), fd));
  shared_.insert(key);
  return OkStatus();
}

void ShmChannel::HandleSocket(bool writable) {
  if (writable) SendUnsent();
  const Status status = DrainSocket(kMessagesPerTurn);
  if (status.code() == Code::kUnavailable) HandleEndOfStream();
  if (!status.ok()) EndAfterRing(status);
  if (closed()) FinishClose();
}

void ShmChannel::HandleEndOfStream() {
  std::lock_guard<std::mutex> lock(socket_mu_);
  eof_.store(true);
  if (socket_ != nullptr) device_->Unwatch(socket_->get());  // it would stay readable forever
}

// Handles pending messages until the first error, at most `most`. Returns OK if some remain.
Status ShmChannel::DrainSocket(int most) {
  while (most-- > 0 && !eof_.load()) {
    const bool over = closed() || ending_;  // too late to act on messages
    Message message;
    {
      std::lock_guard<std::mutex> lock(socket_mu_);
      if (socket_ == nullptr) return OkStatus();
      const Status status = ReceiveMessage(socket_->get(), &message);
      if (status.code() == Code::kNotFound) return OkStatus();
      if (!status.ok() && (!over || status.code() == Code::kUnavailable)) return status;
    }
    // Continue after a wake, because a region for Map() may follow.
    if (TypeOf(message.bytes) == MessageType::kWake) Attend();
    if (over || TypeOf(message.bytes) == MessageType::kWake) continue;
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
    case MessageType::kRegion: {
      const Status added = peer_memory_.Add(*message, peer(), Hold());
      return added.code() == Code::kResourceExhausted ? Refuse(*message, added) : added;
    }
    case MessageType::kRefuse: {
      RegionKey refused;
      RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &refused));
      std::lock_guard<std::mutex> lock(socket_mu_);
      if (shared_.erase(refused.key) != 0) refused_.insert(refused.key);
      return OkStatus();
    }
    case MessageType::kWithdraw: {
      RegionKey withdrawn;
      RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &withdrawn));
      peer_memory_.Remove(withdrawn.key);
      return OkStatus();
    }
    case MessageType::kBye: {
      Bye bye;
      RDMA_RETURN_IF_ERROR(FromBytes(message->bytes, &bye));
      bye.reason[sizeof(bye.reason) - 1] = '\0';
      // Not Unavailable: the peer is alive and may still read outstanding buffers.
      return Status(Code::kAborted, std::string("the peer closed the channel: ") + bye.reason);
    }
    default:
      break;
  }
  return Status(Code::kDataLoss, "an unexpected message on the peer's local socket");
}

// The peer uses other ways for what is in the region.
Status ShmChannel::Refuse(const Message& message, const Status& reason) {
  RegionMessage region;
  RDMA_RETURN_IF_ERROR(FromBytes(message.bytes, &region));
  if (++refusals_ > kMostRefusals) return reason;
  if (refusals_ == 1) {
    Log(LogLevel::kWarning, "shm: memory of a peer is not used in place: " + reason.message());
  }
  std::lock_guard<std::mutex> lock(socket_mu_);
  if (socket_ == nullptr || closed()) return OkStatus();
  SendLocked(AsBytes(RegionKey{MessageType::kRefuse, region.key}));
  return OkStatus();
}

void ShmChannel::WithdrawRegion(uint64_t key) {
  std::lock_guard<std::mutex> lock(socket_mu_);
  refused_.erase(key);
  if (shared_.erase(key) == 0 || socket_ == nullptr || closed()) return;
  RegionKey withdrawn = {};
  withdrawn.type = MessageType::kWithdraw;
  withdrawn.key = key;
  SendLocked(AsBytes(withdrawn));
}

// Sends now, or when the peer has read messages from its socket.
void ShmChannel::SendLocked(std::string_view message) {
  if (unsent_.empty()) {
    const Status sent = SendMessage(socket_->get(), message);
    if (sent.code() != Code::kResourceExhausted) return;  // a peer that is gone needs no message
    device_->WatchForRoom(this, socket_->get(), true);
  }
  unsent_.emplace_back(message);
}

void ShmChannel::SendUnsent() {
  std::lock_guard<std::mutex> lock(socket_mu_);
  while (!unsent_.empty()) {
    const Status sent = SendMessage(socket_->get(), unsent_.front());
    if (sent.code() == Code::kResourceExhausted) return;
    unsent_.pop_front();
  }
  device_->WatchForRoom(this, socket_->get(), false);
}

}  // namespace rdma_transport::fabric::shm
