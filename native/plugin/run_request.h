// A RunGraph request whose ID depends on the step.
//
// TensorFlow draws request IDs from a generator that each thread seeds with 32 bits, runs each step
// on its own thread, and rejects a request whose ID equals one of the last 100,000. In long
// training, about every 40,000th step fails with "The same RunGraph (Worker) request was received
// twice". Step IDs come from one generator per process. A true duplicate request has the same step
// too.
#pragma once

#include <cstdint>
#include <string>

#include "tensorflow/core/distributed_runtime/message_wrappers.h"

namespace rdma_transport {

// Everything but the ID is that of the wrapped request. As thread-safe as that.
class RunRequest final : public tensorflow::RunGraphRequestWrapper {
 public:
  // `inner` must outlive this.
  explicit RunRequest(tensorflow::RunGraphRequestWrapper* inner) : inner_(inner) {}

  int64_t request_id() const override {
    const int64_t id = inner_->request_id();
    return id == 0 ? 0 : id ^ inner_->step_id();  // 0 disables the check
  }

  const std::string& session_handle() const override { return inner_->session_handle(); }
  bool create_worker_session_called() const override {
    return inner_->create_worker_session_called();
  }
  const std::string& graph_handle() const override { return inner_->graph_handle(); }
  int64_t step_id() const override { return inner_->step_id(); }
  const tensorflow::ExecutorOpts& exec_opts() const override { return inner_->exec_opts(); }
  size_t num_sends() const override { return inner_->num_sends(); }
  const std::string& send_key(size_t i) const override { return inner_->send_key(i); }
  absl::Status SendValue(size_t i, tensorflow::Tensor* tensor) const override {
    return inner_->SendValue(i, tensor);
  }
  size_t num_recvs() const override { return inner_->num_recvs(); }
  const std::string& recv_key(size_t i) const override { return inner_->recv_key(i); }
  bool is_partial() const override { return inner_->is_partial(); }
  bool is_last_partial_run() const override { return inner_->is_last_partial_run(); }
  bool store_errors_in_response_body() const override {
    return inner_->store_errors_in_response_body();
  }
  const tensorflow::RunGraphRequest& ToProto() const override { return inner_->ToProto(); }

 private:
  tensorflow::RunGraphRequestWrapper* const inner_;
};

}  // namespace rdma_transport
