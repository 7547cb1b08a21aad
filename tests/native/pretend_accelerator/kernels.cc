// Kernels of the pretend accelerator, for float. Each runs on the stream of its operation.
#include <tensorflow/c/kernels.h>

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

  void Fail(const char* message) { TF_SetStatus(status_.get(), TF_INVALID_ARGUMENT, message); }

  OwnedTensor Input(int index) {
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, index, &tensor, status_.get());
    return OwnedTensor(tensor);
  }

  OwnedTensor Output(const Shape& shape) {
    size_t bytes = sizeof(float);
    for (const int64_t side : shape) bytes *= static_cast<size_t>(side);
    return OwnedTensor(TF_AllocateOutput(context_, 0, TF_FLOAT, shape.data(),
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
              const char* host_input = nullptr, void* (*create)(TF_OpKernelConstruction*) = nullptr,
              void (*destroy)(void*) = nullptr) {
  const OwnedStatus status(TF_NewStatus());
  TF_KernelBuilder* builder = TF_NewKernelBuilder(operation, kDevice, create, compute, destroy);
  TF_KernelBuilder_TypeConstraint(builder, "T", TF_FLOAT, status.get());
  if (host_input != nullptr) TF_KernelBuilder_HostMemory(builder, host_input);
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
  pretend::Register("Abs", pretend::AbsoluteOfHost, "x");
  pretend::Register("MatMul", pretend::MatMul, nullptr, pretend::CreateMatMul,
                    pretend::DeleteMatMul);
}
