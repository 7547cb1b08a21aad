#include "tensorflow/collective_mgr.h"

#include <memory>
#include <string>
#include <utility>

#include "tensorflow/collective_access.h"
#include "tensorflow/collective_steps.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/nccl/collective_communicator.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

class CollectiveMgr final : public tf::RpcCollectiveExecutorMgr {
 public:
  CollectiveMgr(const tf::ConfigProto& config, const tf::DeviceMgr* devices,
                std::unique_ptr<tf::DeviceResolverDistributed> device_resolver,
                std::unique_ptr<tf::CollectiveParamResolverDistributed> param_resolver,
                std::unique_ptr<tf::NcclCommunicatorInterface> nccl,
                tf::WorkerCacheInterface* cache, const std::string& task, const tf::WorkerEnv* env,
                Endpoint* endpoint)
      : RpcCollectiveExecutorMgr(config, devices, std::move(device_resolver),
                                 std::move(param_resolver), std::move(nccl), cache, task),
        env_(env),
        endpoint_(endpoint) {}

  void Cleanup(int64_t step) override {
    RpcCollectiveExecutorMgr::Cleanup(step);
    // Eager code has one step for all its life, which may begin anew.
    if (step == 0) {
      endpoint_->ClearStep(StepOfCollectives(step));
    } else {
      endpoint_->EndStep(StepOfCollectives(step));
    }
  }

 protected:
  tf::CollectiveExecutor* Create(int64_t step) override {
    auto* access = new CollectiveAccess(dev_mgr_, dev_resolver_.get(), work_queue_,
                                        env_->session_mgr->LegacySession()->GetSharedWorkerCache(),
                                        step, task_name_, endpoint_);
    return new tf::BaseCollectiveExecutor(this, access, step, dev_mgr_, work_queue_);
  }

 private:
  const tf::WorkerEnv* const env_;
  Endpoint* const endpoint_;
};

}  // namespace

tf::CollectiveExecutorMgrInterface* MakeCollectiveMgr(const tf::ConfigProto& config,
                                                      const tf::WorkerEnv* env,
                                                      tf::WorkerCacheInterface* cache,
                                                      Endpoint* endpoint) {
  const std::string& task = endpoint->identity().task;
  auto nccl = tf::MaybeCreateNcclCommunicator(config);
  auto devices = std::make_unique<tf::DeviceResolverDistributed>(env->device_mgr);
  auto params = std::make_unique<tf::CollectiveParamResolverDistributed>(
      config, env->device_mgr, devices.get(), nccl.get(), cache, task);
  return new CollectiveMgr(config, env->device_mgr, std::move(devices), std::move(params),
                           std::move(nccl), cache, task, env, endpoint);
}

}  // namespace rdma_transport
