#include "plugin/kernel_times.h"

#include "base/work_times.h"
#include "protocol/poller.h"
#include "tensorflow/core/framework/op.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

WorkTimes& Times() {
  static auto* times = new WorkTimes;
  return *times;
}

// Whether the kernel never waits for what another thread does, such as one that holds a lock of
// Python.
bool NeverWaits(tf::OpKernel* kernel) {
  if (kernel->AsAsync() != nullptr) return true;
  const auto& type = kernel->type_string();
  const tf::OpDef* op = nullptr;
  return tf::OpRegistry::Global()->LookUpOpDef(type, &op).ok() && !op->is_stateful() &&
         type != "PyFuncStateless";
}

uint64_t BytesOfInputs(tf::OpKernelContext* context) {
  uint64_t bytes = 0;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->input_is_ref(i) && context->has_input(i)) bytes += context->input(i).TotalBytes();
  }
  return bytes;
}

}  // namespace

TimedKernel::TimedKernel(tf::OpKernel* kernel, tf::OpKernelContext* context) {
  if (!Poller::RunsDeferredWork()) return;
  if (!kernel->IsExpensive()) {
    Poller::WorkAhead(0);
    return;
  }
  const auto type = kernel->type_string_view();
  if (type == "_Send" || type == "_HostSend") return;
  bytes_ = BytesOfInputs(context);
  const Nanos expected = Times().Expected(kernel, bytes_);
  if (expected == WorkTimes::kUnknown) {
    Poller::LongWorkAhead();
    if (!NeverWaits(kernel)) return;
  } else {
    Poller::WorkAhead(expected);
  }
  kernel_ = kernel;
  begin_ = Now();
}

TimedKernel::~TimedKernel() {
  if (kernel_ == nullptr) return;
  Times().Record(kernel_, bytes_, Now() - begin_);
}

}  // namespace rdma_transport
