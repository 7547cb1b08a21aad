// A call of a kernel that has been started: between TensorFlow's step, which may be cancelled, and
// the named calls, which cannot take back what they have announced.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "collectives/named_calls.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdma_transport {

// Owns the tensors of a call, so that they stay valid until it ends, even if the step was cancelled
// before. Calls the kernel's callback once. Thread-safe from Start() on.
class Running : public std::enable_shared_from_this<Running> {
 public:
  // Adds what the call gives besides its arrays to `outputs`.
  using Results = void (*)(const collectives::NamedResult& result,
                           std::vector<tensorflow::Tensor>* outputs);

  Running(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done,
          Results results)
      : context_(context),
        done_(std::move(done)),
        results_(results),
        allocator_(context->get_allocator(tensorflow::AllocatorAttributes())) {}

  // Adds an input as an array of `call`, with an output of the same shape, which is the input's
  // memory if no one else uses that.
  absl::Status Add(int input, collectives::NamedCall* call);
  // Adds an input whose output the call allocates, since it has another number of rows.
  absl::Status AddRows(int input, collectives::NamedCall* call);

  // Starts the call. The context must not be used afterwards. If the arguments are `wrong` on this
  // rank, the call fails on all ranks, with that error on this one.
  void Start(const std::shared_ptr<collectives::NamedCalls>& calls, collectives::NamedCall call,
             absl::Status wrong);
  // Ends the kernel with an error. Not after Start().
  void Fail(const absl::Status& status);

 private:
  char* Allocate(size_t array, uint64_t rows);
  void End(const Status& status, const collectives::NamedResult& result);
  void Cancel();
  bool First();
  absl::Status StepStatus(const Status& status) const;

  tensorflow::OpKernelContext* const context_;  // not used after `done_`
  const tensorflow::AsyncOpKernel::DoneCallback done_;
  const Results results_;
  tensorflow::Allocator* const allocator_;
  tensorflow::CancellationToken token_ = tensorflow::CancellationManager::kInvalidToken;
  absl::Status wrong_;
  struct Tensors {
    std::vector<tensorflow::Tensor> inputs;
    std::vector<tensorflow::Tensor> outputs;  // those of AddRows() belong to the calls' thread
  };
  std::shared_ptr<Tensors> tensors_ = std::make_shared<Tensors>();
  std::mutex mu_;
  bool ended_ = false;  // guarded by mu_
};

}  // namespace rdma_transport
