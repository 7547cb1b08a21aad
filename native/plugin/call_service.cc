#include "plugin/call_service.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/work_times.h"
#include "plugin/step_errors.h"
#include "protocol/calls.h"
#include "protocol/poller.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/message_wrappers.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

void Answer(IncomingCall* call, const absl::Status& status) {
  if (status.ok()) return call->Succeed();
  call->Fail(EncodeError(status));
}

// Parses the request, or fails the call.
template <typename Request>
bool Parsed(IncomingCall* call, Request* request) {
  if (request->ParseFromString(call->request())) return true;
  Answer(call, absl::InvalidArgumentError("a malformed request"));
  return false;
}

struct RunningGraph {
  tf::CallOptions opts;
  tf::RunGraphRequest request;
  tf::RunGraphResponse response;
  tf::ProtoRunGraphRequest wrapped_request{&request};
  tf::NonOwnedProtoRunGraphResponse wrapped_response{&response};
};

// To start a graph takes longer the larger it is, and peers must be polled meanwhile.
class TimedStart {
 public:
  explicit TimedStart(const std::string& graph) : graph_(std::hash<std::string>()(graph)) {
    const Nanos expected = Times().Expected(Key(), /*bytes=*/0);
    expected == WorkTimes::kUnknown ? Poller::LongWorkAhead() : Poller::WorkAhead(expected);
    begin_ = Now();
  }
  TimedStart(const TimedStart&) = delete;
  TimedStart& operator=(const TimedStart&) = delete;
  ~TimedStart() { Times().Record(Key(), /*bytes=*/0, Now() - begin_); }

 private:
  static WorkTimes& Times() {
    static auto* times = new WorkTimes;
    return *times;
  }
  // Only compared.
  const void* Key() const { return reinterpret_cast<const void*>(graph_); }

  const size_t graph_;
  Nanos begin_ = 0;
};

}  // namespace

void CallService::OnCall(std::shared_ptr<IncomingCall> call) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (canceling_ > 0) return waiting_.push_back(std::move(call));
  }
  Schedule(std::move(call));
}

void CallService::Schedule(std::shared_ptr<IncomingCall> call) {
  env_->compute_pool->Schedule([this, call = std::move(call)] {
    switch (call->method()) {
      case CallMethod::kRunGraph:
        return RunGraph(call);
      case CallMethod::kCleanupGraph:
        return CleanupGraph(call);
    }
    call->Refuse();
  });
}

void CallService::RunGraph(const std::shared_ptr<IncomingCall>& call) {
  auto running = std::make_shared<RunningGraph>();
  if (!Parsed(call.get(), &running->request)) return;
  const TimedStart timed(running->request.session_handle() + running->request.graph_handle());
  worker_->RunGraphAsync(&running->opts, &running->wrapped_request, &running->wrapped_response,
                         [call, running](const absl::Status& status) {
                           Answer(call.get(),
                                  status.ok() ? running->wrapped_response.status() : status);
                         });
  // After the call, which is what can be canceled.
  call->OnCancel([this, options = std::shared_ptr<tf::CallOptions>(running, &running->opts)] {
    Cancel(options);
  });
}

void CallService::Cancel(std::shared_ptr<tf::CallOptions> step) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    ++canceling_;
  }
  env_->compute_pool->Schedule([this, step = std::move(step)] {
    step->StartCancel();
    std::vector<std::shared_ptr<IncomingCall>> calls;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (--canceling_ == 0) calls.swap(waiting_);
    }
    for (std::shared_ptr<IncomingCall>& call : calls) Schedule(std::move(call));
  });
}

void CallService::CleanupGraph(const std::shared_ptr<IncomingCall>& call) {
  auto request = std::make_shared<tf::CleanupGraphRequest>();
  auto response = std::make_shared<tf::CleanupGraphResponse>();
  if (!Parsed(call.get(), request.get())) return;
  worker_->CleanupGraphAsync(
      request.get(), response.get(),
      [call, request, response](const absl::Status& status) { Answer(call.get(), status); });
}

}  // namespace rdma_transport
