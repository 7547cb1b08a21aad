#include "protocol/calls.h"

namespace rdma_transport {
namespace {

// Calls of one peer that run here. A session has one or two for each step that runs.
constexpr size_t kMaxRunning = 65536;

CallMessage MessageOf(MessageType type, uint64_t number) {
  CallMessage message = {};
  message.type = type;
  message.number = number;
  return message;
}

}  // namespace

// --- A call that runs here ---

void IncomingCall::OnCancel(std::function<void()> cancel) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (answered_) return;
    if (!canceled_) {
      cancel_ = std::move(cancel);
      return;
    }
  }
  cancel();
}

void IncomingCall::Cancel() {
  std::function<void()> cancel;
  {
    std::lock_guard<std::mutex> lock(mu_);
    canceled_ = true;
    cancel = std::exchange(cancel_, nullptr);
  }
  if (cancel != nullptr) cancel();
}

void IncomingCall::Answer(CallResult result, std::string_view error) {
  std::function<void()> cancel;  // destroyed after unlocking
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (std::exchange(answered_, true)) return;
    cancel = std::exchange(cancel_, nullptr);
  }
  reply_(result, error.substr(0, kMaxCallLength));
}

// --- The calls of this task ---

uint64_t Calls::Start(CallMethod method, std::string_view request,
                      const std::shared_ptr<PendingCall>& call) {
  if (request.size() > kMaxCallLength) return 0;
  CallMessage message = MessageOf(MessageType::kCall, 0);
  message.method = method;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (ended_) return 0;
    message.number = ++last_;
    pending_.emplace(message.number, call);
  }
  const CallFrame frame(message, request);
  const Status sent = channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake,
                                       nullptr, fabric::After::Nothing());
  if (sent.ok()) return message.number;
  std::lock_guard<std::mutex> lock(mu_);
  pending_.erase(message.number);
  return 0;
}

void Calls::Cancel(uint64_t number) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (pending_.erase(number) == 0) return;
  }
  // Not before the call itself.
  ControlMessage message(MessageType::kCancelCall);
  message.call = number;
  notifier_->SendControl(message, fabric::Urgency::kWake);
}

Status Calls::OnReply(const CallMessage& message, std::string_view error) {
  std::shared_ptr<PendingCall> call;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (message.number == 0 || message.number > last_) {
      return Status(Code::kDataLoss, "a reply to a call that was not made");
    }
    const auto found = pending_.find(message.number);
    if (found == pending_.end()) return OkStatus();  // canceled
    call = std::move(found->second);
    pending_.erase(found);
  }
  if (!call->Claim()) return OkStatus();
  Delivery delivery;
  switch (message.result) {
    case CallResult::kDone:
      break;
    case CallResult::kRefused:
      delivery.status = Status(Code::kUnimplemented, "the peer does not serve this call");
      break;
    default:
      delivery.status = Status(Code::kAborted, "the call failed");
      delivery.error = std::string(error);
  }
  call->OnDelivery(std::move(delivery));
  return OkStatus();
}

// --- The peer's calls ---

Status Calls::OnCall(const CallMessage& message, std::string_view request,
                     std::shared_ptr<IncomingCall>* call) {
  *call = std::make_shared<IncomingCall>(message.method, std::string(request),
                                         [weak = weak_from_this(), number = message.number](
                                             CallResult result, std::string_view error) {
                                           if (const auto self = weak.lock())
                                             self->Reply(number, result, error);
                                         });
  std::lock_guard<std::mutex> lock(mu_);
  if (!running_.emplace(message.number, *call).second) {
    return Status(Code::kDataLoss, "two calls with one number");
  }
  if (running_.size() > kMaxRunning) return Status(Code::kDataLoss, "too many calls at once");
  return OkStatus();
}

void Calls::OnCancel(uint64_t number) {
  std::shared_ptr<IncomingCall> call;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = running_.find(number);
    if (found != running_.end()) call = found->second;
  }
  if (call != nullptr) call->Cancel();
}

void Calls::Reply(uint64_t number, CallResult result, std::string_view error) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (running_.erase(number) == 0) return;  // the link has ended
  }
  CallMessage message = MessageOf(MessageType::kReply, number);
  message.result = result;
  const CallFrame frame(message, error);
  notifier_->Send(frame.parts(), frame.count(), fabric::Urgency::kWake, fabric::After::Nothing());
}

bool Calls::Running() const {
  std::lock_guard<std::mutex> lock(mu_);
  return !running_.empty();
}

void Calls::End() {
  std::map<uint64_t, std::shared_ptr<IncomingCall>> running;
  {
    std::lock_guard<std::mutex> lock(mu_);
    ended_ = true;
    running = std::exchange(running_, {});
    pending_.clear();  // they fail with the link
  }
  for (const auto& [number, call] : running) call->Cancel();
}

}  // namespace rdma_transport
