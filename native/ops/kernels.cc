// The kernels. None occupies a thread while it waits.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "collectives/named_calls.h"
#include "collectives/types.h"
#include "ops/running.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;
using collectives::Collective;
using collectives::DType;
using collectives::NamedCall;
using collectives::NamedCalls;
using collectives::NamedResult;
using collectives::ReduceOp;

// Of the types that the operations allow.
DType TypeOf(tf::DataType type) {
  switch (type) {
    case tf::DT_BOOL:
      return DType::kBool;
    case tf::DT_INT8:
      return DType::kInt8;
    case tf::DT_INT16:
      return DType::kInt16;
    case tf::DT_INT32:
      return DType::kInt32;
    case tf::DT_INT64:
      return DType::kInt64;
    case tf::DT_UINT8:
      return DType::kUint8;
    case tf::DT_UINT16:
      return DType::kUint16;
    case tf::DT_UINT32:
      return DType::kUint32;
    case tf::DT_UINT64:
      return DType::kUint64;
    case tf::DT_HALF:
      return DType::kFloat16;
    case tf::DT_BFLOAT16:
      return DType::kBfloat16;
    case tf::DT_DOUBLE:
      return DType::kFloat64;
    case tf::DT_COMPLEX64:
      return DType::kComplex64;
    case tf::DT_COMPLEX128:
      return DType::kComplex128;
    default:
      return DType::kFloat32;
  }
}

ReduceOp OperationOf(const std::string& name) {
  if (name == "product") return ReduceOp::kProd;
  if (name == "min") return ReduceOp::kMin;
  return name == "max" ? ReduceOp::kMax : ReduceOp::kSum;
}

absl::Status GetFactor(tf::OpKernelConstruction* construction, const char* name, double* factor) {
  std::string text;
  TF_RETURN_IF_ERROR(construction->GetAttr(name, &text));
  if (absl::SimpleAtod(text, factor)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is no number: ", text));
}

absl::Status NoMember(int group) {
  return absl::FailedPreconditionError(absl::StrCat(
      "this process is not a member of group ", group,
      ", or has left it: call rdma_transport.tensorflow.connect() or new_group() before"));
}

// What all kernels have in common: the call without its arrays, and the name.
class Kernel : public tf::AsyncOpKernel {
 public:
  Kernel(tf::OpKernelConstruction* construction, Collective collective, Running::Results results)
      : AsyncOpKernel(construction), results_(results) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
    std::string given;
    OP_REQUIRES_OK(construction, construction->GetAttr("tensor_name", &given));
    call_.name = given.empty() ? std::string(name()) : given;
    call_.collective = collective;
    if (construction->HasAttr("T")) {
      tf::DataType type;
      OP_REQUIRES_OK(construction, construction->GetAttr("T", &type));
      call_.dtype = TypeOf(type);
    }
    if (construction->HasAttr("root")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("root", &call_.root));
    }
    if (construction->HasAttr("op")) {
      std::string op;
      OP_REQUIRES_OK(construction, construction->GetAttr("op", &op));
      OP_REQUIRES_OK(construction, construction->GetAttr("average", &call_.average));
      call_.op = OperationOf(op);
      OP_REQUIRES_OK(construction, GetFactor(construction, "prescale", &call_.prescale));
      OP_REQUIRES_OK(construction, GetFactor(construction, "postscale", &call_.postscale));
    }
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const std::shared_ptr<NamedCalls> calls = NamedCalls::Find(group_);
    auto running = std::make_shared<Running>(context, std::move(done), results_);
    if (calls == nullptr) return running->Fail(NoMember(group_));
    NamedCall call = call_;
    AddIteration(context->frame_iter(), &call.name);
    const absl::Status described = Describe(context, running.get(), &call);
    running->Start(calls, std::move(call), described);
  }

 protected:
  NamedCall call_;

 private:
  // Adds the arrays, and what depends on the inputs.
  virtual absl::Status Describe(tf::OpKernelContext* context, Running* running,
                                NamedCall* call) const = 0;

  // Iterations of a loop may run at once.
  static void AddIteration(tf::FrameAndIter frame, std::string* name) {
    if (frame == tf::FrameAndIter() || (frame.frame_id == 0 && frame.iter_id == 0)) return;
    absl::StrAppend(name, ":", frame.iter_id, "@", absl::Hex(frame.frame_id));
  }

  const Running::Results results_;
  int group_ = 0;
};

class AllReduceKernel final : public Kernel {
 public:
  explicit AllReduceKernel(tf::OpKernelConstruction* construction)
      : Kernel(construction, Collective::kAllReduce, nullptr) {}

 private:
  absl::Status Describe(tf::OpKernelContext* context, Running* running,
                        NamedCall* call) const override {
    for (int i = 0; i < context->num_inputs(); ++i) TF_RETURN_IF_ERROR(running->Add(i, call));
    return absl::OkStatus();
  }
};

class BroadcastKernel final : public Kernel {
 public:
  explicit BroadcastKernel(tf::OpKernelConstruction* construction)
      : Kernel(construction, Collective::kBroadcast, nullptr) {}

 private:
  absl::Status Describe(tf::OpKernelContext* context, Running* running,
                        NamedCall* call) const override {
    return running->Add(0, call);
  }
};

class ReduceScatterKernel final : public Kernel {
 public:
  explicit ReduceScatterKernel(tf::OpKernelConstruction* construction)
      : Kernel(construction, Collective::kReduceScatter, nullptr) {}

 private:
  absl::Status Describe(tf::OpKernelContext* context, Running* running,
                        NamedCall* call) const override {
    for (int i = 0; i < context->num_inputs(); ++i) TF_RETURN_IF_ERROR(running->AddRows(i, call));
    return absl::OkStatus();
  }
};

class AllGatherKernel final : public Kernel {
 public:
  explicit AllGatherKernel(tf::OpKernelConstruction* construction)
      : Kernel(construction, Collective::kAllGather, AddRowsOfRanks) {}

 private:
  static void AddRowsOfRanks(const NamedResult& result, std::vector<tf::Tensor>* outputs) {
    tf::Tensor rows(tf::DT_INT64, {static_cast<int64_t>(result.rows.size())});
    std::copy(result.rows.begin(), result.rows.end(), rows.flat<int64_t>().data());
    outputs->push_back(std::move(rows));
  }
  absl::Status Describe(tf::OpKernelContext* context, Running* running,
                        NamedCall* call) const override {
    for (int i = 0; i < context->num_inputs(); ++i) TF_RETURN_IF_ERROR(running->AddRows(i, call));
    return absl::OkStatus();
  }
};

class AllToAllKernel final : public Kernel {
 public:
  explicit AllToAllKernel(tf::OpKernelConstruction* construction)
      : Kernel(construction, Collective::kAllToAll, AddReceivedSplits) {}

 private:
  static void AddReceivedSplits(const NamedResult& result, std::vector<tf::Tensor>* outputs) {
    tf::Tensor splits(tf::DT_INT32, {static_cast<int64_t>(result.rows.size())});
    std::copy(result.rows.begin(), result.rows.end(), splits.flat<int32_t>().data());
    outputs->push_back(std::move(splits));
  }
  absl::Status Describe(tf::OpKernelContext* context, Running* running,
                        NamedCall* call) const override {
    TF_RETURN_IF_ERROR(running->AddRows(0, call));
    const auto splits = context->input(1).flat<int32_t>();
    call->splits.assign(splits.data(), splits.data() + splits.size());
    return absl::OkStatus();
  }
};

class BarrierKernel final : public Kernel {
 public:
  explicit BarrierKernel(tf::OpKernelConstruction* construction)
      : Kernel(construction, Collective::kBarrier, nullptr) {}

 private:
  absl::Status Describe(tf::OpKernelContext* context, Running* running,
                        NamedCall* call) const override {
    return absl::OkStatus();
  }
};

class JoinKernel final : public Kernel {
 public:
  explicit JoinKernel(tf::OpKernelConstruction* construction)
      : Kernel(construction, Collective::kBarrier, AddLast) {
    call_.joins = true;
  }

 private:
  static void AddLast(const NamedResult& result, std::vector<tf::Tensor>* outputs) {
    outputs->emplace_back(static_cast<int32_t>(result.last));
  }
  absl::Status Describe(tf::OpKernelContext* context, Running* running,
                        NamedCall* call) const override {
    return absl::OkStatus();
  }
};

// Calls nothing: the graph of an elastic job outlives the ranks with which it was built.
class PlaceKernel final : public tf::OpKernel {
 public:
  explicit PlaceKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("group", &group_));
  }
  void Compute(tf::OpKernelContext* context) override {
    const std::shared_ptr<NamedCalls> calls = NamedCalls::Find(group_);
    OP_REQUIRES(context, calls != nullptr, NoMember(group_));
    tf::Tensor rank(calls->rank());
    tf::Tensor size(calls->size());
    context->set_output(0, rank);
    context->set_output(1, size);
  }
  bool IsExpensive() override { return false; }

 private:
  int group_ = 0;
};

class DeliverKernel final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tf::OpKernelContext* context) override {
    for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  }
  bool IsExpensive() override { return false; }
};

#define RDMA_TRANSPORT_KERNEL(name) \
  REGISTER_KERNEL_BUILDER(Name("RdmaTransport" #name).Device(tf::DEVICE_CPU), name##Kernel)

RDMA_TRANSPORT_KERNEL(AllReduce);
RDMA_TRANSPORT_KERNEL(Deliver);
RDMA_TRANSPORT_KERNEL(ReduceScatter);
RDMA_TRANSPORT_KERNEL(AllGather);
RDMA_TRANSPORT_KERNEL(Broadcast);
RDMA_TRANSPORT_KERNEL(AllToAll);
RDMA_TRANSPORT_KERNEL(Barrier);
RDMA_TRANSPORT_KERNEL(Join);
RDMA_TRANSPORT_KERNEL(Place);

}  // namespace
}  // namespace rdma_transport
