#include "plugin/send_op.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "analyzer/partition_edges.h"
#include "plugin/device_names.h"
#include "plugin/graph_plans.h"
#include "plugin/worker_cache.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

std::string NewOwner() {
  static std::atomic<uint64_t> count{0};
  return "send/" + std::to_string(++count) + "/";
}

// TensorFlow makes the kernels of a function's partition when it first runs it, before any of them
// computes. It destroys them with the function.
class SendOp final : public tf::OpKernel {
 public:
  explicit SendOp(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    tf::NodeDef same = def();
    same.set_op("_HostSend");  // another name of TensorFlow's kernel
    absl::Status made;
    send_ = tf::CreateOpKernel(construction->device_type(), construction->device(),
                               construction->device()->GetAllocator({}), same,
                               construction->graph_def_version(), &made);
    OP_REQUIRES_OK(construction, made);
    analyzer::Edge edge;
    if (!analyzer::MarkedEdge(tf::AttrSlice(def()), &edge)) return;
    const std::string self(WorkerOf(edge.source_device));
    PlanEdges(owner_, {edge},
              [this, &self](const std::string& task) { return peer_ = FindPeer(self, task); });
  }
  ~SendOp() override {
    if (peer_ != nullptr) peer_->Unplan(owner_);
  }

  void Compute(tf::OpKernelContext* context) override { send_->Compute(context); }
  std::string TraceString(const tf::OpKernelContext& context, bool verbose) const override {
    return send_->TraceString(context, verbose);
  }

 private:
  std::unique_ptr<tf::OpKernel> send_;
  const std::string owner_ = NewOwner();
  Peer* peer_ = nullptr;  // null unless the edge is planned
};

}  // namespace

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
