#include "rpc/session.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"
#include "memory/block.h"
#include "protocol/counters.h"
#include "protocol/trace.h"

namespace rdma_transport::rpc {
namespace {

// A client has one call in progress on each of its threads.
constexpr size_t kMaxCalls = 1024;
constexpr std::chrono::milliseconds kRoomInterval(1);

Header HeaderOf(Type type, uint64_t call) {
  Header header = {};
  header.type = type;
  header.call = call;
  return header;
}

}  // namespace

Status Session::Open(std::string_view address, const std::string& channel_key, std::string* own) {
  RDMA_RETURN_IF_ERROR(context_.device->Open(weak_from_this(), &channel_));
  RDMA_RETURN_IF_ERROR(channel_->Connect(address, fabric::Role::kPassive, {channel_key}));
  *own = channel_->Address();
  context_.device->Wake();  // a thread must poll, which may not have begun to
  return OkStatus();
}

void Session::Close(const std::string& reason) {
  channel_->Close(Status(Code::kCancelled, reason));
}

bool Session::QuitIfIdle() {
  std::lock_guard<std::mutex> lock(mu_);
  quitting_ |= connected_ && calls_.empty();
  return quitting_;
}

void Session::Quit() {
  std::lock_guard<std::mutex> lock(mu_);
  quitting_ = true;
  changed_.notify_all();
}

bool Session::closed() const {
  std::lock_guard<std::mutex> lock(mu_);
  return closed_;
}

bool Session::EndsLocked() const { return closed_ || quitting_; }

bool Session::Overdue(Nanos now) const {
  std::lock_guard<std::mutex> lock(mu_);
  return !connected_ && now - created_ > context_.settings->connect_timeout;
}

Nanos Session::IdleSince() const {
  std::lock_guard<std::mutex> lock(mu_);
  return connected_ && calls_.empty() ? used_at_ : 0;
}

// --- On the polling thread ---

void Session::OnConnected() {
  std::lock_guard<std::mutex> lock(mu_);
  connected_ = true;
  used_at_ = Now();
}

void Session::OnNotify(const char* data, size_t length) {
  Message message;
  Status status = Parse(data, length, &message);
  if (status.ok()) status = Dispatch(message);
  if (!status.ok()) channel_->Close(status);
}

Status Session::Dispatch(const Message& message) {
  const uint64_t number = message.header.call;
  switch (message.header.type) {
    case Type::kRequest:
      return Begin(message);
    case Type::kReceiveBuffer: {
      MapPlaces(message.places);
      std::lock_guard<std::mutex> lock(mu_);
      const auto found = calls_.find(number);
      if (found == calls_.end()) return OkStatus();  // already cancelled and answered
      if (found->second->writing)
        return ProtocolViolation("receive buffers for a reply that is being written");
      found->second->places = message.places;
      found->second->buffers_came = true;
      changed_.notify_all();
      return OkStatus();
    }
    case Type::kCancel:
      Cancel(number);
      return OkStatus();
    case Type::kPing:
      return Notify(HeaderOf(Type::kPong, 0), nullptr, 0, {});
    default:
      return ProtocolViolation("an unexpected notification");
  }
}

Status Session::Begin(const Message& message) {
  MapPlaces(message.places);
  const uint64_t number = message.header.call;
  auto call = std::make_shared<Call>();
  call->request = message.bytes;
  call->places = message.places;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (EndsLocked()) return OkStatus();  // the client is notified by the channel's end
    if (calls_.size() >= kMaxCalls) return ProtocolViolation("too many calls at once");
    if (!calls_.emplace(number, call).second)
      return ProtocolViolation("a call with a number that is in use");
  }
  run_([self = shared_from_this(), number, call] { self->Respond(number, call); });
  return OkStatus();
}

// A peer's region must be mapped before it is written, and only the polling thread maps.
void Session::MapPlaces(const std::vector<Place>& places) {
  if (!channel_->MapsPeer()) return;
  for (const Place& place : places) {
    if (place.length > 0) channel_->Map({place.key, place.offset, place.length});
  }
}

void Session::Cancel(uint64_t number) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = calls_.find(number);
    if (found == calls_.end() || found->second->writing) return;
    found->second->cancelled = true;
    calls_.erase(found);
    used_at_ = Now();
    changed_.notify_all();
  }
  Reply cancelled;
  cancelled.status = Status(Code::kCancelled, "the call was cancelled");
  const std::string text = EncodeReply(cancelled, {});
  Header header = HeaderOf(Type::kPart, number);
  header.length = header.total = text.size();
  const Status sent = Notify(header, nullptr, 0, text);
  if (!sent.ok()) channel_->Close(sent);
}

void Session::OnTransfer(uint64_t cookie, const Status& /*status*/) {
  OwnerRef ended;  // dropped after unlocking
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = writing_.find(cookie);
  if (found == writing_.end()) return;
  ended = std::move(found->second);
  writing_.erase(found);
}

void Session::OnClosed(const Status& /*status*/) {
  std::map<uint64_t, OwnerRef> ended;
  {
    std::lock_guard<std::mutex> lock(mu_);
    closed_ = true;
    ended.swap(writing_);
    changed_.notify_all();
  }
  for (auto& [cookie, owner] : ended) channel_->Keep(std::move(owner));
}

// --- On the call's thread ---

void Session::Respond(uint64_t number, const std::shared_ptr<Call>& call) {
  const auto reply = std::make_shared<Reply>(handler_(call->request));
  const Nanos began = Trace::On() ? Now() : 0;
  std::vector<uint64_t> sizes;  // of payloads that do not fit into the text
  for (const Payload& payload : reply->payloads) {
    if (payload.bytes > context_.settings->inline_max) sizes.push_back(payload.bytes);
  }
  if (sizes.size() > kMaxPlaces) sizes.clear();
  const bool large = !sizes.empty();
  if (!RequestPlaces(number, call, sizes)) return;
  std::vector<uint64_t> places(reply->payloads.size(), 0);
  size_t next = 0;
  bool written = false;
  uint64_t bytes = 0;
  for (size_t i = 0; i < reply->payloads.size(); ++i) {
    bytes += reply->payloads[i].bytes;
    if (!large || reply->payloads[i].bytes <= context_.settings->inline_max) continue;
    const Place& place = call->places[next++];
    if (!WritePayload(reply->payloads[i], place, reply)) continue;
    places[i] = next;
    written = true;
  }
  SendText(number, EncodeReply(*reply, places));
  if (reply->status.ok()) {
    GlobalCounters().replies_sent.Add(bytes);
    if (began != 0) {
      Trace::Sent(Trace::Ends(context_.name, client_name_), began, static_cast<int64_t>(number),
                  context_.brings, bytes, written ? Mode::kDynamic : Mode::kInline, /*handle=*/0);
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  calls_.erase(number);
  used_at_ = Now();
}

// Waits until there are places for those sizes. Returns false if the reply is no longer wanted.
bool Session::RequestPlaces(uint64_t number, const std::shared_ptr<Call>& call,
                            const std::vector<uint64_t>& sizes) {
  const auto fit = [&] {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i >= call->places.size() || call->places[i].length < sizes[i]) return false;
    }
    return true;
  };
  std::unique_lock<std::mutex> lock(mu_);
  if (!fit() && !call->cancelled && !EndsLocked()) {
    call->buffers_came = false;
    lock.unlock();
    Header header = HeaderOf(Type::kSizes, number);
    header.count = static_cast<uint32_t>(sizes.size());
    const Status asked = Notify(header, sizes.data(), sizes.size() * sizeof(uint64_t), {});
    lock.lock();
    // A channel that refuses is closing or closed.
    if (asked.ok()) {
      changed_.wait(lock, [&] { return call->buffers_came || call->cancelled || EndsLocked(); });
    }
    call->places.resize(sizes.size());  // payloads without a place go into the text
  }
  if (call->cancelled || EndsLocked()) return false;
  call->writing = true;
  return true;
}

// Returns false if the payload must go into the text.
bool Session::WritePayload(const Payload& payload, const Place& place,
                           const std::shared_ptr<Reply>& reply) {
  if (place.length < payload.bytes) return false;
  const fabric::RemoteSpan span = {place.key, place.offset, payload.bytes};
  if (channel_->Copies()) return channel_->Write(payload.data, span, fabric::kNobodyWaits).ok();
  const char* source = payload.data;
  OwnerRef owner;
  fabric::RemoteSpan own;
  if (channel_->Locate(source, &own) && own.length >= payload.bytes) {
    owner = OwnerRef::Holding(reply);
  } else {
    char* staged = memory::AllocateBlock(context_.arena, payload.bytes, &owner);
    if (staged == nullptr || !channel_->Locate(staged, &own)) return false;
    std::memcpy(staged, payload.data, payload.bytes);
    GlobalCounters().copied_bytes.fetch_add(payload.bytes, std::memory_order_relaxed);
    source = staged;
  }
  uint64_t cookie = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return false;
    cookie = ++last_cookie_;
    writing_.emplace(cookie, std::move(owner));
  }
  if (channel_->Write(source, span, cookie).ok()) return true;
  OnTransfer(cookie, OkStatus());
  return false;
}

void Session::SendText(uint64_t number, const std::string& text) {
  Header header = HeaderOf(Type::kPart, number);
  header.total = text.size();
  for (size_t at = 0; at < text.size(); at += kPartBytes) {
    const std::string_view part = std::string_view(text).substr(at, kPartBytes);
    header.length = part.size();
    if (!NotifyWhenThereIsRoom(header, part).ok()) return;  // closing or closed
  }
}

Status Session::Notify(const Header& header, const void* table, size_t table_bytes,
                       std::string_view bytes) {
  const Frame frame(&header, table, table_bytes, bytes);
  return channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

// Blocks while the client is slower than this side, so that no part of a reply is lost.
Status Session::NotifyWhenThereIsRoom(const Header& header, std::string_view bytes) {
  while (true) {
    const Status sent = Notify(header, nullptr, 0, bytes);
    if (sent.code() != Code::kResourceExhausted) return sent;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (EndsLocked()) return sent;
    }
    std::this_thread::sleep_for(kRoomInterval);
  }
}

}  // namespace rdma_transport::rpc
