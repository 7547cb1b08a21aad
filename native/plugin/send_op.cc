#include "plugin/send_op.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "analyzer/partition_edges.h"
#include "plugin/graph_plans.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

thread_local const std::shared_ptr<const EdgePlan>* t_plan = nullptr;

class ScopedPlan {
 public:
  explicit ScopedPlan(const std::shared_ptr<const EdgePlan>& plan) : outer_(t_plan) {
    t_plan = &plan;
  }
  ~ScopedPlan() { t_plan = outer_; }
  ScopedPlan(const ScopedPlan&) = delete;
  ScopedPlan& operator=(const ScopedPlan&) = delete;

 private:
  const std::shared_ptr<const EdgePlan>* const outer_;
};

std::shared_ptr<const EdgePlan> PlanOf(const tf::AttrSlice& send) {
  analyzer::Mark mark;
  if (PlanningRuntime() == nullptr || !analyzer::MarkOf(send, &mark)) return nullptr;
  return std::make_shared<const EdgePlan>(
      EdgePlan{memory::SlotsOfEdge(mark.in_loop), std::move(mark.site)});
}

class SendOp final : public tf::OpKernel {
 public:
  explicit SendOp(tf::OpKernelConstruction* construction)
      : OpKernel(construction), plan_(PlanOf(tf::AttrSlice(def()))) {
    tf::NodeDef same = def();
    same.set_op("_HostSend");  // another name of TensorFlow's kernel
    absl::Status made;
    send_ = tf::CreateOpKernel(construction->device_type(), construction->device(),
                               construction->device()->GetAllocator({}), same,
                               construction->graph_def_version(), &made);
    OP_REQUIRES_OK(construction, made);
  }

  void Compute(tf::OpKernelContext* context) override {
    const ScopedPlan scope(plan_);
    send_->Compute(context);
  }
  std::string TraceString(const tf::OpKernelContext& context, bool verbose) const override {
    return send_->TraceString(context, verbose);
  }

 private:
  std::unique_ptr<tf::OpKernel> send_;
  const std::shared_ptr<const EdgePlan> plan_;
};

}  // namespace

std::shared_ptr<const EdgePlan> PlanOfSend() { return t_plan == nullptr ? nullptr : *t_plan; }

// A kernel for a type of devices comes before TensorFlow's kernel for all types.
void RegisterSendOp(const std::string& device_type) {
  using tf::kernel_factory::OpKernelRegistrar;
  static auto* mu = new std::mutex;
  static auto* registered = new std::map<std::string, std::unique_ptr<OpKernelRegistrar>>;
  std::lock_guard<std::mutex> lock(*mu);
  std::unique_ptr<OpKernelRegistrar>& registrar = (*registered)[device_type];
  if (registrar != nullptr) return;
  registrar = std::make_unique<OpKernelRegistrar>(
      tf::KernelDefBuilder("_Send").Device(device_type.c_str()).Priority(1).Build(), "SendOp",
      [](tf::OpKernelConstruction* construction) -> tf::OpKernel* {
        return new SendOp(construction);
      });
}

}  // namespace rdma_transport
