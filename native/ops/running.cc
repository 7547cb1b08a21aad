#include "ops/running.h"

#include <string>

#include "collectives/named_execution.h"
#include "tensorflow/core/framework/cancellation.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// The bytes of a tensor; of one without elements, an address that no one uses.
char* DataOf(const tf::Tensor& tensor) {
  alignas(64) static char none[64];
  return tensor.TotalBytes() == 0 ? none : static_cast<char*>(tensor.data());
}

collectives::NamedArray ArrayOf(const tf::Tensor& tensor) {
  collectives::NamedArray array;
  array.input = DataOf(tensor);
  for (const int64_t size : tensor.shape().dim_sizes()) array.shape.push_back(size);
  array.rows = tensor.dims() == 0 ? 1 : tensor.dim_size(0);
  array.row_length = 1;
  for (int i = 1; i < tensor.dims(); ++i) array.row_length *= tensor.dim_size(i);
  return array;
}

}  // namespace

absl::Status Running::Add(int input, collectives::NamedCall* call) {
  const tf::Tensor& tensor = context_->input(input);
  tf::Tensor output;  // first: the input's memory has more users once a copy of it is kept
  TF_RETURN_IF_ERROR(
      context_->forward_input_or_allocate_temp({input}, tensor.dtype(), tensor.shape(), &output));
  call->arrays.push_back(ArrayOf(tensor));
  call->arrays.back().output = DataOf(output);
  tensors_->inputs.push_back(tensor);
  tensors_->outputs.push_back(std::move(output));
  return absl::OkStatus();
}

absl::Status Running::AddRows(int input, collectives::NamedCall* call) {
  const tf::Tensor& tensor = context_->input(input);
  if (tensor.dims() == 0) {
    return absl::InvalidArgumentError("a scalar has no rows; give a tensor of one dimension");
  }
  call->arrays.push_back(ArrayOf(tensor));
  tensors_->inputs.push_back(tensor);
  tensors_->outputs.emplace_back(tensor.dtype());
  return absl::OkStatus();
}

void Running::Start(const std::shared_ptr<collectives::NamedCalls>& calls,
                    collectives::NamedCall call, absl::Status wrong) {
  auto self = shared_from_this();
  call.allocate = [self](size_t array, uint64_t rows) { return self->Allocate(array, rows); };
  call.done = [self](const Status& status, const collectives::NamedResult& result) {
    self->End(status, result);
  };
  call.keeper = tensors_;
  wrong_ = std::move(wrong);
  if (wrong_.ok()) {
    const Status valid = collectives::CheckCall(call, calls->size());
    if (!valid.ok()) wrong_ = absl::InvalidArgumentError(valid.message());
  } else {
    call.arrays.clear();
    call.collective = collectives::Collective::kInvalid;
  }
  tf::CancellationManager* const cancellation = context_->cancellation_manager();
  if (cancellation != nullptr) {
    token_ = cancellation->get_cancellation_token();
    if (!cancellation->RegisterCallback(token_, [self] { self->Cancel(); })) return Cancel();
  }
  calls->Start(std::move(call));
}

void Running::Fail(const absl::Status& status) {
  context_->SetStatus(status);
  done_();
}

char* Running::Allocate(size_t array, uint64_t rows) {
  tf::TensorShape shape = tensors_->inputs[array].shape();
  shape.set_dim(0, static_cast<int64_t>(rows));
  tensors_->outputs[array] = tf::Tensor(allocator_, tensors_->inputs[array].dtype(), shape);
  return tensors_->outputs[array].IsInitialized() ? DataOf(tensors_->outputs[array]) : nullptr;
}

bool Running::First() {
  std::lock_guard<std::mutex> lock(mu_);
  return !std::exchange(ended_, true);
}

// That ranks differ is no fault of one rank's arguments; Horovod reports it by this code, too.
absl::Status Running::StepStatus(const Status& status) const {
  if (status.code() != Code::kInvalidArgument) {
    return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
  }
  return wrong_.ok() ? absl::FailedPreconditionError(status.message()) : wrong_;
}

void Running::End(const Status& status, const collectives::NamedResult& result) {
  auto tensors = std::move(tensors_);
  if (!First()) return;
  // Waits for Cancel(), which does not wait.
  if (context_->cancellation_manager() != nullptr) {
    context_->cancellation_manager()->DeregisterCallback(token_);
  }
  if (status.ok()) {
    std::vector<tf::Tensor>& outputs = tensors->outputs;
    if (results_ != nullptr) results_(result, &outputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      context_->set_output(static_cast<int>(i), outputs[i]);
    }
  } else {
    context_->SetStatus(StepStatus(status));
  }
  tensors.reset();
  done_();
}

// The call itself goes on: the other ranks count on this one.
void Running::Cancel() {
  if (!First()) return;
  context_->SetStatus(absl::CancelledError("the step was cancelled"));
  done_();
}

}  // namespace rdma_transport
