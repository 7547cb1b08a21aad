#include "loopback_fabric/channel.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/parts.h"
#include "base/random.h"

namespace rdma_transport::testing {
namespace {

constexpr size_t kIdLength = 8;
constexpr size_t kTokenLength = 16;
constexpr size_t kMaxNotification = size_t{96} << 10;
constexpr uint64_t kRing = uint64_t{256} << 10;  // there is none; more than this is said to wait
constexpr int kEventsPerPoll = 64;

// All open channels of this process, by ID. Requires Mutex().
std::map<std::string, LoopbackChannel*>& Open() {
  static auto* open = new std::map<std::string, LoopbackChannel*>;
  return *open;
}

// Tells addresses of this process from those of others.
const std::string& Process() {
  static const auto* process = new std::string(RandomBytes(kIdLength));
  return *process;
}

Status NotConnected() { return Status(Code::kUnavailable, "the channel is not connected"); }

}  // namespace

std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// An address is the process, the channel's ID and its token.
Status LoopbackDevice::Reaches(std::string_view channel_address) const {
  if (channel_address.size() != 2 * kIdLength + kTokenLength) {
    return Status(Code::kInvalidArgument, "a malformed address of a loopback channel");
  }
  if (channel_address.substr(0, kIdLength) == Process()) return OkStatus();
  return Status(Code::kUnavailable, "it is in another process");
}

LoopbackChannel::LoopbackChannel(LoopbackDevice* device,
                                 std::weak_ptr<fabric::ChannelHandler> handler)
    : device_(device),
      handler_(std::move(handler)),
      id_(RandomBytes(kIdLength)),
      token_(RandomBytes(kTokenLength)) {
  std::lock_guard<std::mutex> lock(Mutex());
  Open()[id_] = this;
}

LoopbackChannel::~LoopbackChannel() {
  std::lock_guard<std::mutex> lock(Mutex());
  End(Status(Code::kCancelled, "the channel is gone"));
  Open().erase(id_);
}

std::string LoopbackChannel::Address() const { return Process() + id_ + token_; }

Status LoopbackChannel::Connect(std::string_view peer_address, fabric::Role role,
                                const fabric::Terms& terms) {
  RDMA_RETURN_IF_ERROR(device_->Reaches(peer_address));
  std::lock_guard<std::mutex> lock(Mutex());
  if (state_ != State::kNew) {
    return Status(Code::kAborted, "the channel was closed: " + reason_.message());
  }
  state_ = State::kConnecting;
  greeting_ = fabric::Greeting(terms.key, role, token_, peer_address.substr(2 * kIdLength));
  if (role == fabric::Role::kPassive) return OkStatus();
  const auto found = Open().find(std::string(peer_address.substr(kIdLength, kIdLength)));
  LoopbackChannel* const peer = found == Open().end() ? nullptr : found->second;
  if (peer == nullptr || peer->state_ != State::kConnecting ||
      !peer->greeting_.IsPeers(greeting_.own()) || !greeting_.IsPeers(peer->greeting_.own())) {
    End(Status(Code::kPermissionDenied, "the peer does not wait for this channel"));
    return OkStatus();
  }
  peer_ = peer;
  peer->peer_ = this;
  for (LoopbackChannel* end : {this, peer}) {
    end->state_ = State::kConnected;
    end->Queue([](fabric::ChannelHandler* handler) { handler->OnConnected(); });
  }
  return OkStatus();
}

Status LoopbackChannel::Share(uint64_t key) {
  std::lock_guard<std::mutex> lock(Mutex());
  if (state_ != State::kConnected) return NotConnected();
  if (!device_->regions().With(key, [](const fabric::Region&) {})) {
    return Status(Code::kInternal, "sharing a region that does not exist");
  }
  shared_.insert(key);
  return OkStatus();
}

Status LoopbackChannel::Notify(const iovec* parts, int count, fabric::Urgency, uint64_t* number,
                               fabric::After) {
  std::string text = Joined(parts, count);
  if (text.size() > kMaxNotification) {
    return Status(Code::kInvalidArgument, "a notification too long");
  }
  std::lock_guard<std::mutex> lock(Mutex());
  if (state_ != State::kConnected) return NotConnected();
  RDMA_RETURN_IF_ERROR(fabric::CheckQueue(text.size(), peer_->queued_bytes_));
  if (number != nullptr) *number = notified_ + 1;
  peer_->queued_bytes_ += text.size();
  peer_->Queue([peer = peer_, text = std::move(text), sequence = ++notified_](
                   fabric::ChannelHandler* handler) { peer->Deliver(text, sequence, handler); });
  return OkStatus();
}

// Reports a notification to this end, and then its delivery to the peer.
void LoopbackChannel::Deliver(const std::string& text, uint64_t number,
                              fabric::ChannelHandler* handler) {
  handler->OnNotify(text.data(), text.size());
  std::lock_guard<std::mutex> lock(Mutex());
  queued_bytes_ -= text.size();
  if (state_ != State::kConnected) return;
  peer_->delivered_ = number;
  peer_->Queue([number](fabric::ChannelHandler* sender) { sender->OnDelivered(number); });
}

uint64_t LoopbackChannel::Delivered() const {
  std::lock_guard<std::mutex> lock(Mutex());
  return delivered_;
}

fabric::Backlog LoopbackChannel::backlog() const {
  std::lock_guard<std::mutex> lock(Mutex());
  const uint64_t queued = peer_ == nullptr ? 0 : peer_->queued_bytes_;
  const uint64_t used = std::min(queued, kRing);
  return {kRing, used, queued - used};
}

Status LoopbackChannel::Reach(const fabric::RemoteSpan& span, fabric::Access least,
                              const std::function<void(char*)>& copy) const {
  Status status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
  if (peer_->shared_.count(span.key) == 0) return status;
  peer_->device_->regions().With(span.key, [&](const fabric::Region& region) {
    if (span.offset > region.length() || span.length > region.length() - span.offset) return;
    if (region.access() < least) {
      status = Status(Code::kPermissionDenied, "a write to memory that may only be read");
      return;
    }
    copy(region.address() + span.offset);
    status = OkStatus();
  });
  return status;
}

Status LoopbackChannel::Check(const void* /*local*/, const fabric::RemoteSpan& span,
                              fabric::Access access) const {
  std::lock_guard<std::mutex> lock(Mutex());
  return state_ == State::kConnected ? Reach(span, access, [](char*) {}) : NotConnected();
}

Status LoopbackChannel::Read(const fabric::RemoteSpan& source, char* destination, uint64_t cookie) {
  std::lock_guard<std::mutex> lock(Mutex());
  if (state_ != State::kConnected) return NotConnected();
  const Status read = Reach(source, fabric::Access::kRemoteRead, [&](const char* data) {
    std::memcpy(destination, data, source.length);
  });
  Queue([=](fabric::ChannelHandler* handler) { handler->OnTransfer(cookie, read); });
  return OkStatus();
}

Status LoopbackChannel::Write(const char* source, const fabric::RemoteSpan& destination,
                              uint64_t cookie) {
  std::lock_guard<std::mutex> lock(Mutex());
  if (state_ != State::kConnected) return NotConnected();
  RDMA_RETURN_IF_ERROR(Reach(destination, fabric::Access::kRemoteReadWrite,
                             [&](char* data) { std::memcpy(data, source, destination.length); }));
  if (cookie == fabric::kNobodyWaits) return OkStatus();
  Queue([=](fabric::ChannelHandler* handler) { handler->OnTransfer(cookie, OkStatus()); });
  return OkStatus();
}

void LoopbackChannel::Close(const Status& reason) {
  std::lock_guard<std::mutex> lock(Mutex());
  End(reason);
}

// Unavailable: from here on the peer accesses no memory of this end.
void LoopbackChannel::End(const Status& reason) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  reason_ = Status(Code::kUnavailable, reason.message());
  events_.clear();
  Queue([this, delivered = delivered_](fabric::ChannelHandler* handler) {
    handler->OnDelivered(delivered);
    handler->OnClosed(reason_);
  });
  LoopbackChannel* const peer = std::exchange(peer_, nullptr);
  if (peer != nullptr) peer->End(reason);
}

void LoopbackChannel::Queue(Event event) {
  events_.push_back(std::move(event));
  device_->Wake();
}

int LoopbackChannel::Poll() {
  const auto handler = handler_.lock();
  if (handler == nullptr) {
    std::lock_guard<std::mutex> lock(Mutex());
    End(Status(Code::kCancelled, "the user of this channel has gone"));
    events_.clear();
    return 0;
  }
  int handled = 0;
  for (; handled < kEventsPerPoll; ++handled) {
    Event event;
    {
      std::lock_guard<std::mutex> lock(Mutex());
      if (events_.empty()) break;
      event = std::move(events_.front());
      events_.pop_front();
    }
    event(handler.get());
  }
  return handled;
}

}  // namespace rdma_transport::testing
