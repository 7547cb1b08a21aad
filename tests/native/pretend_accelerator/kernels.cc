// Kernels of the pretend accelerator, for float. Each runs on the stream of its operation.
#include <tensorflow/c/kernels.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "memory.h"
#include "settings.h"
#include "stream.h"

namespace pretend_accelerator {
namespace {

constexpr char kDevice[] = "PRETEND";

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using OwnedStatus = std::unique_ptr<TF_Status, StatusDeleter>;
using OwnedTensor = std::unique_ptr<TF_Tensor, TensorDeleter>;
using Shape = std::vector<int64_t>;

Shape ShapeOf(const TF_Tensor* tensor) {
  Shape shape;
  for (int i = 0; i < TF_NumDims(tensor); ++i) shape.push_back(TF_Dim(tensor, i));
  return shape;
}

float* Floats(const TF_Tensor* tensor) {
  if (TF_TensorByteSize(tensor) == 0) return nullptr;
  return reinterpret_cast<float*>(Reachable(TF_TensorData(tensor)));
}

// One call of a kernel. The first error becomes the operation's.
class Call {
 public:
  explicit Call(TF_OpKernelContext* context) : context_(context), status_(TF_NewStatus()) {}

  ~Call() {
    if (!ok()) TF_OpKernelContext_Failure(context_, status_.get());
  }

  bool ok() const { return TF_GetCode(status_.get()) == TF_OK; }

  int inputs() const { return TF_NumInputs(context_); }

  void Fail(const char* message) { TF_SetStatus(status_.get(), TF_INVALID_ARGUMENT, message); }

  OwnedTensor Input(int index) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, index, &tensor, status_.get());
    return OwnedTensor(tensor);
  }

  OwnedTensor Output(const Shape& shape, int index = 0) {
    size_t bytes = sizeof(float);
    for (const int64_t side : shape) bytes *= static_cast<size_t>(side);
    return OwnedTensor(TF_AllocateOutput(context_, index, TF_FLOAT, shape.data(),
                                         static_cast<int>(shape.size()), bytes, status_.get()));
  }

  // In the memory of the first input, if TensorFlow allows or, as its collectives do, demands it.
  OwnedTensor OutputInFirstInput(const Shape& shape) {
    const int first = 0;
    int forwarded = -1;
    OwnedTensor output(TF_ForwardInputOrAllocateOutput(context_, &first, 1, 0, shape.data(),
                                                       static_cast<int>(shape.size()), &forwarded,
                                                       status_.get()));
    in_place_ = forwarded == first;
    return output;
  }

  // The tensors live on: TensorFlow reuses memory only for what the stream does later.
  void Launch(const OwnedTensor& output, std::function<void(float*)> compute) {
    SP_Stream stream = TF_GetStream(context_, status_.get());
    float* const to = Floats(output.get());
    if (!ok() || to == nullptr) return;
    Operation operation;
    operation.run = [to, compute = std::move(compute)] {
      compute(to);
      ++counters().kernels;
    };
    if (!in_place_) operation.destination = reinterpret_cast<char*>(to);
    operation.bytes = TF_TensorByteSize(output.get());
    stream->Enqueue(std::move(operation));
  }

 private:
  TF_OpKernelContext* const context_;
  const OwnedStatus status_;
  bool in_place_ = false;
};

float Negated(float x) { return -x; }
float Squared(float x) { return x * x; }
float Sum(float x, float y) { return x + y; }
float Difference(float x, float y) { return x - y; }
float Product(float x, float y) { return x * y; }
float Quotient(float x, float y) { return x / y; }

template <float (*kFunction)(float)>
void Unary(void*, TF_OpKernelContext* context) {
  Call call(context);
  const OwnedTensor input = call.Input(0);
  if (!call.ok()) return;
  const OwnedTensor output = call.Output(ShapeOf(input.get()));
  if (!call.ok()) return;
  const int64_t count = TF_TensorElementCount(input.get());
  call.Launch(output, [from = Floats(input.get()), count](float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = kFunction(from[i]);
  });
}

template <float (*kFunction)(float, float), bool kInPlace = false>
void Binary(void*, TF_OpKernelContext* context) {
  Call call(context);
  const OwnedTensor left = call.Input(0);
  if (!call.ok()) return;
  const OwnedTensor right = call.Input(1);
  if (!call.ok()) return;
  const Shape left_shape = ShapeOf(left.get());
  const Shape right_shape = ShapeOf(right.get());
  const bool one_left = TF_TensorElementCount(left.get()) == 1;
  const bool one_right = TF_TensorElementCount(right.get()) == 1;
  if (left_shape != right_shape && !one_left && !one_right) {
    call.Fail("the pretend accelerator needs operands of equal shape, or one element");
    return;
  }
  const bool shape_of_left = !one_left || (one_right && left_shape.size() >= right_shape.size());
  const Shape& shape = shape_of_left ? left_shape : right_shape;
  const OwnedTensor output = kInPlace ? call.OutputInFirstInput(shape) : call.Output(shape);
  if (!call.ok()) return;
  const int64_t count = TF_TensorElementCount(output.get());
  call.Launch(output, [=, x = Floats(left.get()), y = Floats(right.get())](float* to) {
    for (int64_t i = 0; i < count; ++i)
      to[i] = kFunction(x[one_left ? 0 : i], y[one_right ? 0 : i]);
  });
}

// Reads its input in the host's memory.
void AbsoluteOfHost(void*, TF_OpKernelContext* context) {
  Call call(context);
  const OwnedTensor input = call.Input(0);
  if (!call.ok()) return;
  const OwnedTensor output = call.Output(ShapeOf(input.get()));
  if (!call.ok()) return;
  const auto* from = static_cast<const float*>(TF_TensorData(input.get()));
  call.Launch(output, [values = std::vector<float>(
                           from, from + TF_TensorElementCount(input.get()))](float* to) {
    for (size_t i = 0; i < values.size(); ++i) to[i] = std::fabs(values[i]);
  });
}

bool IsZero(const TF_Tensor* number) {
  const void* at = TF_TensorData(number);
  return TF_TensorType(number) == TF_INT64 ? *static_cast<const int64_t*>(at) == 0
                                           : *static_cast<const int32_t*>(at) == 0;
}

// Appends tensors to each other, along their first axis.
void Concat(void*, TF_OpKernelContext* context) {
  struct Part {
    const float* from;
    int64_t count;
  };
  Call call(context);
  const int count = call.inputs() - 1;
  const OwnedTensor axis = call.Input(count);
  if (!call.ok()) return;
  std::vector<Part> parts;
  Shape shape;
  for (int i = 0; i < count; ++i) {
    const OwnedTensor input = call.Input(i);
    if (!call.ok()) return;
    Shape own = ShapeOf(input.get());
    if (own.empty() || !IsZero(axis.get())) {
      return call.Fail("the pretend accelerator concatenates along the first axis only");
    }
    parts.push_back({Floats(input.get()), TF_TensorElementCount(input.get())});
    if (i > 0) own[0] += shape[0];
    shape = std::move(own);
  }
  const OwnedTensor output = call.Output(shape);
  if (!call.ok()) return;
  call.Launch(output, [parts = std::move(parts)](float* to) {
    for (const Part& part : parts) to = std::copy_n(part.from, part.count, to);
  });
}

// Splits a vector into parts of given sizes, which it reads in the host's memory.
void Split(void*, TF_OpKernelContext* context) {
  Call call(context);
  const OwnedTensor input = call.Input(0);
  if (!call.ok()) return;
  const OwnedTensor sizes = call.Input(1);
  if (!call.ok()) return;
  if (TF_NumDims(input.get()) != 1) {
    return call.Fail("the pretend accelerator splits vectors only");
  }
  const auto* counts = static_cast<const int32_t*>(TF_TensorData(sizes.get()));
  const float* from = Floats(input.get());
  int64_t left = TF_Dim(input.get(), 0);
  for (int i = 0; i < TF_TensorElementCount(sizes.get()); ++i) {
    const int64_t count = counts[i];
    left -= count;
    if (count < 0 || left < 0) return call.Fail("the sizes of parts are not those of the vector");
    const OwnedTensor output = call.Output({count}, i);
    if (!call.ok()) return;
    call.Launch(output, [from, count](float* to) { std::copy_n(from, count, to); });
    from += count;
  }
}

struct Transposed {
  TF_Bool a = 0;
  TF_Bool b = 0;
};

void* CreateMatMul(TF_OpKernelConstruction* construction) {
  const OwnedStatus status(TF_NewStatus());
  auto transposed = std::make_unique<Transposed>();
  TF_OpKernelConstruction_GetAttrBool(construction, "transpose_a", &transposed->a, status.get());
  TF_OpKernelConstruction_GetAttrBool(construction, "transpose_b", &transposed->b, status.get());
  return transposed.release();
}

void DeleteMatMul(void* kernel) { delete static_cast<Transposed*>(kernel); }

void MatMul(void* kernel, TF_OpKernelContext* context) {
  const Transposed transposed = *static_cast<Transposed*>(kernel);
  Call call(context);
  const OwnedTensor a = call.Input(0);
  if (!call.ok()) return;
  const OwnedTensor b = call.Input(1);
  if (!call.ok()) return;
  const Shape a_shape = ShapeOf(a.get());
  const Shape b_shape = ShapeOf(b.get());
  if (a_shape.size() != 2 || b_shape.size() != 2 ||
      a_shape[transposed.a ? 0 : 1] != b_shape[transposed.b ? 1 : 0]) {
    call.Fail("the pretend accelerator cannot multiply matrices of these shapes");
    return;
  }
  const int64_t rows = a_shape[transposed.a ? 1 : 0];
  const int64_t inner = a_shape[transposed.a ? 0 : 1];
  const int64_t columns = b_shape[transposed.b ? 0 : 1];
  const OwnedTensor output = call.Output({rows, columns});
  if (!call.ok()) return;
  call.Launch(output, [=, x = Floats(a.get()), y = Floats(b.get())](float* to) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          sum += x[transposed.a ? k * rows + i : i * inner + k] *
                 y[transposed.b ? j * inner + k : k * columns + j];
        }
        to[i * columns + j] = sum;
      }
    }
  });
}

void Register(const char* operation, void (*compute)(void*, TF_OpKernelContext*),
              const std::vector<const char*>& host_inputs = {},
              void* (*create)(TF_OpKernelConstruction*) = nullptr,
              void (*destroy)(void*) = nullptr) {
  const OwnedStatus status(TF_NewStatus());
  TF_KernelBuilder* builder = TF_NewKernelBuilder(operation, kDevice, create, compute, destroy);
  TF_KernelBuilder_TypeConstraint(builder, "T", TF_FLOAT, status.get());
  for (const char* input : host_inputs) TF_KernelBuilder_HostMemory(builder, input);
  TF_RegisterKernelBuilder(operation, builder, status.get());
}

}  // namespace
}  // namespace pretend_accelerator

void TF_InitKernel() {
  namespace pretend = pretend_accelerator;
  pretend::Register("Neg", pretend::Unary<pretend::Negated>);
  pretend::Register("Square", pretend::Unary<pretend::Squared>);
  pretend::Register("Add", pretend::Binary<pretend::Sum, /*kInPlace=*/true>);
  pretend::Register("AddV2", pretend::Binary<pretend::Sum>);
  pretend::Register("Sub", pretend::Binary<pretend::Difference>);
  pretend::Register("Div", pretend::Binary<pretend::Quotient, /*kInPlace=*/true>);
  pretend::Register("Mul", pretend::Binary<pretend::Product>);
  pretend::Register("Abs", pretend::AbsoluteOfHost, {"x"});
  pretend::Register("ConcatV2", pretend::Concat, {"axis"});
  pretend::Register("SplitV", pretend::Split, {"size_splits", "split_dim"});
  pretend::Register("MatMul", pretend::MatMul, {}, pretend::CreateMatMul, pretend::DeleteMatMul);
}
