#include "plugin/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <forward_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "fabric/fabric.h"
#include "plugin/accelerators.h"
#include "plugin/arena_allocator.h"
#include "plugin/kernel_times.h"
#include "plugin/mutable_buffers.h"
#include "plugin/owned_buffer.h"
#include "protocol/counters.h"
#include "protocol/process.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdma_transport {
namespace {

using tensorflow::DMAHelper;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorValue;

// Whether the buffer is a peer's memory, or a slot that a peer will write again.
bool IsPeersMemory(const Tensor& tensor) {
  const void* data = DMAHelper::base(&tensor);
  if (fabric::IsMapped(data)) return true;
  const Runtime* runtime = ProcessRuntimeIfMade();
  return runtime->receive_arena() != nullptr && runtime->receive_arena()->Contains(data);
}

// Whether this is a value for a variable that would have to be copied in each step that sends the
// variable: it was fed, or arrived over gRPC.
bool IsValueOutsideArena(const OpKernel& kernel, const Tensor& input) {
  if (kernel.type_string_view() != "AssignVariableOp" || !DMAHelper::CanUseDMA(&input))
    return false;
  const Runtime* runtime = ProcessRuntimeIfMade();
  return runtime->arena() != nullptr && input.TotalBytes() > runtime->settings().arena_min_tensor &&
         !runtime->arena()->Contains(DMAHelper::base(&input));
}

// Kernels that keep an input, or write into it without checking. They get a copy: a variable must
// not pin a producer's memory, and a producer's memory must not change. What a function returns may
// be written through DLPack.
bool NeedsOwnInput(const OpKernel& kernel) {
  static const auto* types = [] {
    auto* all = new std::vector<std::string>{"AssignVariableOp", "InplaceUpdate", "InplaceAdd",
                                             "InplaceSub",       "PyFunc",        "EagerPyFunc",
                                             "PyFuncStateless",  "_Retval"};
    const std::string& custom = ProcessRuntimeIfMade()->settings().copy_inputs_of;
    for (const absl::string_view type : absl::StrSplit(custom, absl::ByAnyChar(", "))) {
      if (!type.empty()) all->emplace_back(type);
    }
    return all;
  }();
  return std::find(types->begin(), types->end(), kernel.type_string_view()) != types->end();
}

Tensor CopyOf(const Tensor& tensor, tensorflow::Allocator* allocator) {
  Tensor copy(allocator, tensor.dtype(), tensor.shape());
  if (!copy.IsInitialized()) return tensor;
  std::memcpy(DMAHelper::base(&copy), DMAHelper::base(&tensor), tensor.TotalBytes());
  GlobalCounters().copied_bytes.fetch_add(tensor.TotalBytes(), std::memory_order_relaxed);
  return copy;
}

// While a kernel that NeedsOwnInput() runs, replaces those inputs that it must own by copies.
class OwnInputs {
 public:
  OwnInputs(OpKernel* kernel, OpKernelContext* context, tensorflow::Allocator* allocator)
      : context_(context) {
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (context->input_is_ref(i) || !context->has_input(i)) continue;
      const Tensor& input = context->input(i);
      if (!IsPeersMemory(input) && !IsValueOutsideArena(*kernel, input)) continue;
      Replace(i, CopyOf(input, allocator));
    }
  }
  OwnInputs(const OwnInputs&) = delete;
  OwnInputs& operator=(const OwnInputs&) = delete;
  ~OwnInputs() {
    if (!copies_.empty()) context_->params()->inputs = originals_;
  }

 private:
  // The Tensor itself may belong to a handle of the eager runtime, which other threads read.
  void Replace(int index, Tensor copy) {
    absl::Span<const TensorValue>& inputs = context_->params()->inputs;
    if (copies_.empty()) {
      originals_ = inputs;
      values_.assign(inputs.begin(), inputs.end());
      inputs = values_;
    }
    copies_.push_front(std::move(copy));
    values_[index].tensor = &copies_.front();
  }

  OpKernelContext* const context_;
  std::forward_list<Tensor> copies_;
  absl::Span<const TensorValue> originals_;
  std::vector<TensorValue> values_;
};

void DisownMappedOutputs(OpKernelContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) {
    if (tensorflow::IsRefType(context->expected_output_dtype(i))) continue;
    Tensor* output = context->mutable_output(i);
    if (output != nullptr) DisownIfMapped(output);
  }
}

void NoteReferenceVariables(OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (!context->input_is_ref(i) || !context->has_input(i)) continue;
    const Tensor variable = context->mutable_input(i, /*lock_held=*/false);
    if (variable.IsInitialized() && DMAHelper::base(&variable) != nullptr) {
      MutableBuffers::Get().Add(DMAHelper::base(&variable));
    }
  }
}

// An output that shares a reference variable's buffer and feeds a _Send is copied here and not at
// the send: what follows this kernel may overwrite the variable before the _Send runs.
void DetachSentOutputs(OpKernelContext* context, tensorflow::Allocator* allocator) {
  if (MutableBuffers::Get().empty()) return;
  for (int i = 0; i < context->num_outputs(); ++i) {
    if (!context->output_alloc_attr(i).nic_compatible()) continue;
    if (tensorflow::IsRefType(context->expected_output_dtype(i))) continue;
    Tensor* output = context->mutable_output(i);
    if (output == nullptr || !output->IsInitialized() || !DMAHelper::CanUseDMA(output)) continue;
    TensorBuffer* buffer = DMAHelper::buffer(output);
    if (buffer == nullptr) continue;  // a tensor without elements may have none
    if (!MutableBuffers::Get().Contains(buffer->root_buffer()->data())) continue;
    *output = CopyOf(*output, allocator);
    GlobalCounters().staged_tensors.fetch_add(1, std::memory_order_relaxed);
  }
}

bool HasReferenceInput(const OpKernel& kernel) {
  for (const tensorflow::DataType type : kernel.input_types()) {
    if (tensorflow::IsRefType(type)) return true;
  }
  return false;
}

}  // namespace

void CpuDevice::Compute(OpKernel* kernel, OpKernelContext* context) {
  const TimedKernel timed(kernel, context);
  std::optional<OwnInputs> inputs;
  if (NeedsOwnInput(*kernel)) {
    inputs.emplace(kernel, context, GetAllocator(tensorflow::AllocatorAttributes()));
  }
  const bool references = HasReferenceInput(*kernel);
  // Before the kernel, because the buffer may be overwritten now and sent by another thread in the
  // meantime. After it, because the kernel may have given the variable another buffer.
  if (references) NoteReferenceVariables(context);
  ThreadPoolDevice::Compute(kernel, context);
  DisownMappedOutputs(context);
  if (!context->status().ok()) return;
  if (references) NoteReferenceVariables(context);
  DetachSentOutputs(context, GetAllocator(tensorflow::AllocatorAttributes()));
}

void CpuDevice::ComputeAsync(tensorflow::AsyncOpKernel* kernel, OpKernelContext* context,
                             tensorflow::AsyncOpKernel::DoneCallback done) {
  const TimedKernel timed(kernel, context);
  std::shared_ptr<OwnInputs> inputs;
  if (NeedsOwnInput(*kernel)) {
    inputs = std::make_shared<OwnInputs>(kernel, context,
                                         GetAllocator(tensorflow::AllocatorAttributes()));
  }
  ThreadPoolDevice::ComputeAsync(
      kernel, context, [inputs = std::move(inputs), context, done = std::move(done)]() mutable {
        inputs.reset();
        DisownMappedOutputs(context);
        done();
      });
}

absl::Status MakeDevices(const tensorflow::SessionOptions& options, const std::string& task,
                         Runtime* runtime,
                         std::vector<std::unique_ptr<tensorflow::Device>>* devices) {
  // Shared by all servers of the process, which share the arena; tensors may outlive a server.
  static auto* allocator = new ArenaAllocator(
      runtime->arena(), runtime->slots(), runtime->trimmer(), runtime->settings().arena_min_tensor,
      tensorflow::ProcessState::singleton()->GetCPUAllocator(tensorflow::port::kNUMANoAffinity));
  const absl::Status made = tensorflow::DeviceFactory::AddDevices(options, task, devices);
  if (!made.ok()) return made;
  const absl::Status prepared = PrepareForAccelerators(*devices, runtime);
  if (!prepared.ok()) return prepared;
  for (auto& device : *devices) {
    if (device->device_type() != "CPU") continue;
    const tensorflow::DeviceAttributes& attributes = device->attributes();
    device = std::make_unique<CpuDevice>(options, device->name(),
                                         tensorflow::Bytes(attributes.memory_limit()),
                                         attributes.locality(), allocator);
  }
  return absl::OkStatus();
}

}  // namespace rdma_transport
