#include "plugin/collective_mgr.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "plugin/collective_access.h"
#include "plugin/collective_resolver.h"
#include "plugin/collective_steps.h"
#include "plugin/direct_reduce.h"
#include "protocol/counters.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/nccl/collective_communicator.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

// What the manager's base class points to, and so destroyed after it.
struct CacheHolder {
  const std::shared_ptr<tf::WorkerCacheInterface> cache;
};

class CollectiveExecutor final : public tf::BaseCollectiveExecutor {
 public:
  using BaseCollectiveExecutor::BaseCollectiveExecutor;

  void ExecuteAsync(tf::OpKernelContext* context, const tf::CollectiveParams* params,
                    const std::string& key, tf::StatusCallback done) override {
    const std::string& algorithm = params->instance.impl_details.collective_name;
    GlobalCounters().collectives.Add(algorithm);
    const bool outer = std::exchange(may_block_, algorithm != kDirectReduce);
    BaseCollectiveExecutor::ExecuteAsync(context, params, key, std::move(done));
    may_block_ = outer;
  }
  // Only TensorFlow's own algorithms block. Another thread takes longer to wake up than a small
  // reduction takes.
  void RunClosure(std::function<void()> closure) override {
    if (std::exchange(may_block_, false)) {
      return BaseCollectiveExecutor::RunClosure(std::move(closure));
    }
    closure();
  }

 private:
  static thread_local bool may_block_;  // what ExecuteAsync() runs next
};

thread_local bool CollectiveExecutor::may_block_ = false;

class CollectiveMgr final : private CacheHolder, public tf::RpcCollectiveExecutorMgr {
 public:
  CollectiveMgr(const tf::ConfigProto& config, const tf::DeviceMgr* devices,
                std::unique_ptr<tf::DeviceResolverDistributed> device_resolver,
                std::unique_ptr<CollectiveResolver> param_resolver,
                std::unique_ptr<tf::NcclCommunicatorInterface> nccl,
                std::shared_ptr<tf::WorkerCacheInterface> cache, const std::string& task,
                Endpoint* endpoint)
      : CacheHolder{cache},
        RpcCollectiveExecutorMgr(config, devices, std::move(device_resolver),
                                 std::move(param_resolver), std::move(nccl), cache.get(), task),
        endpoint_(endpoint) {}

  void Cleanup(int64_t step) override {
    RpcCollectiveExecutorMgr::Cleanup(step);
    // Eager code uses one step all the time and may restart it.
    if (step == 0) {
      endpoint_->RestartStep(StepOfCollectives(step));
    } else {
      endpoint_->EndStep(StepOfCollectives(step));
    }
  }

 protected:
  tf::CollectiveExecutor* Create(int64_t step) override {
    auto* access = new CollectiveAccess(dev_mgr_, dev_resolver_.get(), work_queue_, cache, step,
                                        task_name_, endpoint_);
    return new CollectiveExecutor(this, access, step, dev_mgr_, work_queue_);
  }

 private:
  Endpoint* const endpoint_;
};

}  // namespace

tf::CollectiveExecutorMgrInterface* MakeCollectiveMgr(
    const tf::ConfigProto& config, const tf::DeviceMgr* device_mgr,
    std::shared_ptr<tf::WorkerCacheInterface> cache, Endpoint* endpoint) {
  const std::string& task = endpoint->identity().task;
  auto nccl = tf::MaybeCreateNcclCommunicator(config);
  auto devices = std::make_unique<tf::DeviceResolverDistributed>(device_mgr);
  auto params = std::make_unique<CollectiveResolver>(config, device_mgr, devices.get(), nccl.get(),
                                                     cache.get(), task, &endpoint->settings());
  return new CollectiveMgr(config, device_mgr, std::move(devices), std::move(params),
                           std::move(nccl), std::move(cache), task, endpoint);
}

}  // namespace rdma_transport
