// Calls of a task's worker service that travel over a link instead of gRPC: short requests, each
// answered by success or an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "fabric/fabric.h"
#include "protocol/pending_recv.h"
#include "protocol/reliable_notifier.h"
#include "protocol/wire.h"

namespace rdma_transport {

// A call that waits for its reply. OnDelivery() gets OK; the error of the service, as `error`;
// Unimplemented without an `error` if the call was not made at the peer; or Unavailable if the peer
// is lost, which may have made it.
class PendingCall : public PendingRecv {
 public:
  void OnUseGrpc(const std::string&) final {}
};

// A call that the peer made and that has not been answered. Thread-safe. May outlive the link.
class IncomingCall {
 public:
  IncomingCall(CallMethod method, std::string request,
               std::function<void(CallResult, std::string_view)> reply)
      : method_(method), request_(std::move(request)), reply_(std::move(reply)) {}

  CallMethod method() const { return method_; }
  const std::string& request() const { return request_; }

  // Sets what stops the work. It is called at most once, on any thread and with no lock held, when
  // the caller cancels the call or is lost; at once, if that has happened. Not after an answer.
  void OnCancel(std::function<void()> cancel);

  // Each call is answered once, by one of these, on any thread. `error` is opaque here, and
  // truncated to kMaxCallLength.
  void Succeed() { Answer(CallResult::kDone, {}); }
  void Fail(std::string_view error) { Answer(CallResult::kFailed, error); }
  // The call was not made here.
  void Refuse() { Answer(CallResult::kRefused, {}); }

  // For the link.
  void Cancel();

 private:
  void Answer(CallResult result, std::string_view error);

  const CallMethod method_;
  const std::string request_;
  const std::function<void(CallResult, std::string_view)> reply_;

  std::mutex mu_;
  bool canceled_ = false;
  bool answered_ = false;
  std::function<void()> cancel_;
};

// Serves one link. Thread-safe.
class Calls : public std::enable_shared_from_this<Calls> {
 public:
  Calls(fabric::Channel* channel, std::shared_ptr<ReliableNotifier> notifier)
      : channel_(channel), notifier_(std::move(notifier)) {}

  // Sends a call. Returns its number, or 0 if it cannot be sent now. `call` gets the reply; the
  // caller makes it fail with the link.
  uint64_t Start(CallMethod method, std::string_view request,
                 const std::shared_ptr<PendingCall>& call);
  // The caller, which has claimed the call, no longer waits for its reply.
  void Cancel(uint64_t number);

  // Messages of the peer. Polling thread only. DataLoss: they do not follow the protocol.
  Status OnCall(const CallMessage& message, std::string_view request,
                std::shared_ptr<IncomingCall>* call);
  Status OnReply(const CallMessage& message, std::string_view error);
  void OnCancel(uint64_t number);
  // Returns whether calls of the peer run here.
  bool Running() const;
  // The link has ended: cancels what runs here.
  void End();

 private:
  void Reply(uint64_t number, CallResult result, std::string_view error);

  fabric::Channel* const channel_;  // outlives calls of Start()
  const std::shared_ptr<ReliableNotifier> notifier_;

  mutable std::mutex mu_;
  bool ended_ = false;
  uint64_t last_ = 0;
  std::map<uint64_t, std::shared_ptr<PendingCall>> pending_;
  std::map<uint64_t, std::shared_ptr<IncomingCall>> running_;  // by the peer's numbers
};

}  // namespace rdma_transport
