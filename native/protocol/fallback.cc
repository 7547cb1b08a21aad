#include "protocol/fallback.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

Status Forbidden(const std::string& tensor, const std::string& reason) {
  GlobalCounters().errors.Add("fallback_forbidden");
  return Status(Code::kFailedPrecondition, "a tensor " + tensor + " would fall back to gRPC (" +
                                               reason + "), and RDMA_TRANSPORT_FALLBACK=forbid");
}

}  // namespace

Status Fallback::Send(Traffic* traffic, int64_t step, std::string_view key, uint64_t bytes,
                      const std::string& reason, FallbackSend* transport) {
  if (!settings_.allow_fallback) {
    const Status forbidden = Forbidden("for peer " + traffic->tasks.remote, reason);
    return Status(forbidden.code(), forbidden.message() + "; edge: " + std::string(key));
  }
  traffic->Sent(Mode::kGrpc).Add(bytes);
  // Only the first line: the order of gRPC's further lines varies.
  GlobalCounters().fallback_reasons.Add(reason.substr(0, reason.find('\n')));
  // Recorded first, so that a link that comes up later finds it. If the receiver waits for it
  // already, Fetched() is called in the meantime.
  Record(&traffic->tasks, step, key);
  const Nanos begin = Trace::On() ? Now() : 0;
  const Status status = transport->Send();
  if (begin != 0) Trace::Sent(&traffic->tasks, begin, step, key, bytes, Mode::kGrpc, /*handle=*/0);
  if (IsWaiting(step, key)) Notify(&traffic->tasks, step, key, reason);
  return status;
}

void Fallback::FailOne(Traffic* traffic, int64_t step, std::string_view key,
                       const std::string& reason, FallbackSend* transport) {
  Log(LogLevel::kWarning, "a tensor for peer " + traffic->tasks.remote +
                              " was not sent: " + reason + "; edge: " + std::string(key));
  if (settings_.allow_fallback) {
    Send(traffic, step, key, /*bytes=*/0, reason, transport).IgnoreError();
  } else {
    Record(&traffic->tasks, step, key);
    Notify(&traffic->tasks, step, key, reason);
  }
}

void Fallback::Record(PeerId peer, int64_t step, std::string_view key) {
  std::lock_guard<std::mutex> lock(mu_);
  Waiting& waiting = steps_[step];
  ++waiting.try_emplace(std::string(key), Pending{peer}).first->second.tensors;
}

void Fallback::Notify(PeerId peer, int64_t step, std::string_view key, const std::string& reason) {
  for (const auto& link : links_->UpTo(peer->remote)) link->SendPull(step, key, reason);
}

void Fallback::SendLost(Traffic* traffic, UnackedTensor lost) {
  if (!settings_.allow_fallback) {
    GlobalCounters().errors.Add("fallback_forbidden");
    return lost.tensor->Fail(
        Status(Code::kUnavailable, "peer " + traffic->tasks.remote +
                                       " is lost: the link broke before delivery of " + lost.key +
                                       " was confirmed, and RDMA_TRANSPORT_FALLBACK=forbid"));
  }
  const Status status = Send(traffic, lost.step, lost.key, lost.bytes,
                             "the link broke before delivery was confirmed", lost.tensor.get());
  if (!status.ok()) lost.tensor->Fail(status);
}

void Fallback::Receive(const std::string& from, const std::shared_ptr<PendingRecv>& recv,
                       const std::string& reason) const {
  if (!settings_.allow_fallback) return FailAll({recv}, Forbidden("of " + from, reason));
  if (recv->AskGrpc()) recv->OnUseGrpc(reason);
}

void Fallback::Fetched(int64_t step, std::string_view key) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = steps_.find(step);
  if (found == steps_.end()) return;
  const auto entry = found->second.find(key);
  if (entry != found->second.end() && --entry->second.tensors == 0) found->second.erase(entry);
  if (found->second.empty()) steps_.erase(found);
}

bool Fallback::IsWaiting(int64_t step, std::string_view key) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = steps_.find(step);
  return found != steps_.end() && found->second.find(key) != found->second.end();
}

void Fallback::EndStep(int64_t step) {
  std::lock_guard<std::mutex> lock(mu_);
  steps_.erase(step);
}

void Fallback::OnLinkUp(Link* link) {
  std::vector<std::pair<int64_t, std::string>> waiting;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [step, tensors] : steps_) {
      for (const auto& [key, pending] : tensors) {
        if (pending.peer != link->peer()) continue;
        for (uint32_t i = 0; i < pending.tensors; ++i) waiting.emplace_back(step, key);
      }
    }
  }
  for (const auto& [step, key] : waiting) link->SendPull(step, key, "sent before");
}

}  // namespace rdma_transport
