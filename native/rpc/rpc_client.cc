#include "rpc/rpc_client.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "memory/block.h"
#include "protocol/bootstrap.h"
#include "protocol/counters.h"
#include "protocol/handshake.h"
#include "protocol/trace.h"
#include "rpc/listener.h"

namespace rdma_transport::rpc {
namespace {

constexpr Nanos kCallSlice = 20 * kMillisecond;  // limits the delay of a cancellation
constexpr uint64_t kShrinks = 4;  // receive buffers this many times too large are dropped

// Unique in this process, so that a number and two processes identify a call.
std::atomic<uint64_t> g_last_call{0};

std::chrono::nanoseconds Nanoseconds(Nanos nanos) { return std::chrono::nanoseconds(nanos); }

Status NotWanted() { return Status(Code::kCancelled, "the client was cancelled"); }

}  // namespace

// --- Connecting ---

Status RpcClient::Connect(const Context& context, const std::string& address, Nanos deadline,
                          const std::atomic<bool>* cancelled, std::shared_ptr<RpcClient>* client) {
  auto made = std::make_shared<RpcClient>(context);
  RDMA_RETURN_IF_ERROR(context.device->Open(made, &made->channel_));
  Status status = made->Bootstrap(address, deadline, cancelled);
  if (status.ok()) status = made->AwaitConnected(deadline, cancelled);
  if (!status.ok()) {
    made->channel_->Close(status);
    return status;
  }
  *client = std::move(made);
  return OkStatus();
}

Status RpcClient::Bootstrap(const std::string& address, Nanos deadline,
                            const std::atomic<bool>* cancelled) {
  BootstrapRequest request;
  request.version = kVersion;
  request.from.task = context_.name;
  request.channel = channel_->Address();
  AskingHandshake handshake(context_.secret_file, kService);
  RDMA_RETURN_IF_ERROR(handshake.Sign(&request));
  std::string bytes;
  RDMA_RETURN_IF_ERROR(TcpBootstrap(address, request.Encode(), deadline, cancelled, &bytes));
  BootstrapReply reply;
  RDMA_RETURN_IF_ERROR(BootstrapReply::Decode(bytes, &reply));
  if (reply.channel.empty()) {
    return Status(Code::kFailedPrecondition, address + " refuses: " + reply.refusal);
  }
  const Status checked = handshake.Check(reply);
  if (!checked.ok()) return Status(checked.code(), address + ": " + checked.message());
  server_name_ = reply.from.task;
  RDMA_RETURN_IF_ERROR(
      channel_->Connect(reply.channel, fabric::Role::kActive, {handshake.channel_key()}));
  context_.device->Wake();  // a thread must poll, which may not have begun to
  return OkStatus();
}

Status RpcClient::AwaitConnected(Nanos deadline, const std::atomic<bool>* cancelled) {
  std::unique_lock<std::mutex> lock(mu_);
  while (!connected_ && !closed_) {
    if (cancelled->load()) return NotWanted();
    if (Now() > deadline) return Status(Code::kUnavailable, "the channel did not come up in time");
    changed_.wait_for(lock, Nanoseconds(kCallSlice));
  }
  return closed_ ? EndedLocked() : OkStatus();
}

// --- Calling ---

Response RpcClient::Call(std::string_view request) {
  Response response;
  auto call = std::make_shared<Pending>();
  std::vector<uint64_t> predicted;
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_ || cancelled_) {
      response.status = closed_ ? EndedLocked() : NotWanted();
      return response;
    }
    if (calls_.empty() && !silent_) heard_ = Now();
    number = ++g_last_call;
    calls_.emplace(number, call);
    predicted = predicted_;
  }
  call->receive_buffers = MakeReceiveBuffers(predicted);
  response.status = Send(Type::kRequest, number, call->receive_buffers, request);
  if (response.status.ok()) {
    response.status = AwaitReply(number, call);
  } else {
    std::lock_guard<std::mutex> lock(mu_);
    calls_.erase(number);  // the peer has not received it
  }
  if (!response.status.ok()) return response;
  response.replied = true;
  response.status = Take(number, call, &response);
  return response;
}

std::vector<RpcClient::ReceiveBuffer> RpcClient::MakeReceiveBuffers(
    const std::vector<uint64_t>& sizes) {
  std::vector<ReceiveBuffer> receive_buffers(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    ReceiveBuffer& buffer = receive_buffers[i];
    buffer.data = memory::AllocateBlock(context_.receive_arena, sizes[i], &buffer.owner);
    fabric::RemoteSpan span;
    if (buffer.data != nullptr && channel_->Locate(buffer.data, &span) &&
        channel_->Share(span.key).ok()) {
      buffer.place = {span.key, span.offset, sizes[i]};
    }
  }
  return receive_buffers;
}

Status RpcClient::Send(Type type, uint64_t number,
                       const std::vector<ReceiveBuffer>& receive_buffers,
                       std::string_view request) {
  std::vector<Place> places;
  for (const ReceiveBuffer& buffer : receive_buffers) places.push_back(buffer.place);
  Header header = {};
  header.type = type;
  header.call = number;
  header.count = static_cast<uint32_t>(places.size());
  header.length = request.size();
  const Frame frame(&header, places.data(), places.size() * sizeof(Place), request);
  return channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

Status RpcClient::AwaitReply(uint64_t number, const std::shared_ptr<Pending>& call) {
  const Nanos interval = std::min(context_.settings->peer_timeout / 4, kSecond);
  std::unique_lock<std::mutex> lock(mu_);
  while (!call->done) {
    if (closed_) return EndedLocked();
    if (cancelled_) return NotWanted();
    if (!call->wanted.empty()) {
      const std::vector<uint64_t> wanted = std::exchange(call->wanted, {});
      lock.unlock();
      call->receive_buffers = MakeReceiveBuffers(wanted);
      RDMA_RETURN_IF_ERROR(Send(Type::kReceiveBuffer, number, call->receive_buffers, {}));
      lock.lock();
      continue;
    }
    const Nanos slept_since = Now();
    const bool timed_out =
        changed_.wait_for(lock, Nanoseconds(interval)) == std::cv_status::timeout;
    if (!timed_out || call->done) continue;
    // If this process itself was not running, the peer's silence does not count.
    if (Now() - slept_since > interval + kSecond) heard_ = Now();
    silent_ = Now() - heard_ > context_.settings->peer_timeout;
    const bool silent = silent_;
    lock.unlock();
    Send(silent ? Type::kCancel : Type::kPing, number, {}, {}).IgnoreError();
    if (silent) return Status(Code::kUnavailable, "the worker does not answer");
    lock.lock();
  }
  return OkStatus();
}

Status RpcClient::Take(uint64_t number, const std::shared_ptr<Pending>& call, Response* response) {
  RDMA_RETURN_IF_ERROR(DecodeReply(std::move(call->text), response));
  uint64_t bytes = 0;
  bool in_buffers = false;
  for (Arrived& arrived : response->payloads) {
    bytes += arrived.bytes;
    if (arrived.place == 0) continue;
    if (arrived.place > call->receive_buffers.size())
      return ProtocolViolation("a payload in an unknown receive buffer");
    ReceiveBuffer& buffer = call->receive_buffers[arrived.place - 1];
    if (!buffer.owner || arrived.bytes > buffer.place.length) {
      return ProtocolViolation("a payload that does not fit its receive buffer");
    }
    arrived.data = buffer.data;
    arrived.owner = std::move(buffer.owner);
    in_buffers = true;
  }
  PredictSizes(response->payloads);
  if (!response->status.ok()) return response->status;
  GlobalCounters().replies_received.Add(bytes);
  if (call->done_at != 0 && Trace::On()) {
    Trace::HandedOver(Trace::Arrived(Trace::Ends(context_.name, server_name_), call->done_at,
                                     static_cast<int64_t>(number), context_.brings, /*suffix=*/{},
                                     bytes, in_buffers ? Mode::kDynamic : Mode::kInline));
  }
  return OkStatus();
}

// The next reply is probably like the previous ones.
void RpcClient::PredictSizes(const std::vector<Arrived>& payloads) {
  std::vector<uint64_t> sizes;
  for (const Arrived& arrived : payloads) {
    if (arrived.place != 0) sizes.push_back(arrived.bytes);
  }
  if (sizes.empty()) return;
  std::lock_guard<std::mutex> lock(mu_);
  predicted_.resize(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool shrinks = predicted_[i] / kShrinks > sizes[i];
    predicted_[i] = shrinks ? sizes[i] : std::max(predicted_[i], sizes[i]);
  }
}

// --- Ending ---

bool RpcClient::lost() const {
  std::lock_guard<std::mutex> lock(mu_);
  return closed_;
}

Status RpcClient::EndedLocked() const {
  return Status(Code::kUnavailable, "the worker was lost: " + reason_.message());
}

void RpcClient::Cancel() {
  std::vector<uint64_t> numbers;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (cancelled_) return;
    cancelled_ = true;
    for (const auto& [number, call] : calls_) numbers.push_back(number);
    changed_.notify_all();
  }
  for (const uint64_t number : numbers) Send(Type::kCancel, number, {}, {}).IgnoreError();
}

void RpcClient::Leave() {
  Cancel();
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (closed_) return;
    if (!calls_.empty()) {
      self_ = shared_from_this();
      return;
    }
  }
  channel_->Close(Status(Code::kCancelled, "the reader has ended"));
}

// --- On the polling thread ---

void RpcClient::OnConnected() {
  std::lock_guard<std::mutex> lock(mu_);
  connected_ = true;
  changed_.notify_all();
}

void RpcClient::OnNotify(const char* data, size_t length) {
  Message message;
  Status status = Parse(data, length, &message);
  if (status.ok()) status = Dispatch(message);
  if (!status.ok()) channel_->Close(status);
}

Status RpcClient::Dispatch(const Message& message) {
  std::shared_ptr<RpcClient> leaving;  // dropped at the end
  {
    std::lock_guard<std::mutex> lock(mu_);
    heard_ = Now();
    silent_ = false;
    if (message.header.type == Type::kPong) return OkStatus();
    const auto found = calls_.find(message.header.call);
    if (found == calls_.end()) return ProtocolViolation("a reply to an unknown call");
    Pending& call = *found->second;
    if (message.header.type == Type::kSizes) {
      call.wanted = message.sizes;
    } else if (message.header.type != Type::kPart) {
      return ProtocolViolation("an unexpected notification");
    } else if (message.header.total < call.text.size() ||
               message.bytes.size() > message.header.total - call.text.size()) {
      return ProtocolViolation("a reply longer than announced");
    } else {
      call.text.append(message.bytes);
      call.done = call.text.size() == message.header.total;
      if (call.done && Trace::On()) call.done_at = heard_;
    }
    if (call.done) calls_.erase(found);
    if (calls_.empty()) leaving.swap(self_);
    changed_.notify_all();
  }
  if (leaving != nullptr) channel_->Close(Status(Code::kCancelled, "the reader has ended"));
  return OkStatus();
}

void RpcClient::OnClosed(const Status& status) {
  std::map<uint64_t, std::shared_ptr<Pending>> calls;
  std::shared_ptr<RpcClient> self;  // both dropped after unlocking
  std::lock_guard<std::mutex> lock(mu_);
  closed_ = true;
  self.swap(self_);
  reason_ = status;
  calls.swap(calls_);
  changed_.notify_all();
  if (status.code() == Code::kUnavailable || calls.empty()) return;
  // A worker that is alive may still write.
  ended_.swap(calls);
  self_ = shared_from_this();
}

void RpcClient::OnReleased() {
  std::map<uint64_t, std::shared_ptr<Pending>> ended;
  std::shared_ptr<RpcClient> self;  // both dropped after unlocking
  std::lock_guard<std::mutex> lock(mu_);
  self.swap(self_);
  ended.swap(ended_);
}

}  // namespace rdma_transport::rpc
