// TensorFlow's resolver of collectives' parameters, which chooses this transport's own algorithm
// where the group can use it.
#pragma once

#include <mutex>
#include <set>
#include <string>

#include "base/settings.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"

namespace rdma_transport {

// Thread-safe. `settings` must outlive it.
class CollectiveResolver final : public tensorflow::CollectiveParamResolverDistributed {
 public:
  CollectiveResolver(const tensorflow::ConfigProto& config, const tensorflow::DeviceMgr* devices,
                     tensorflow::DeviceResolverDistributed* resolver,
                     tensorflow::NcclCommunicatorInterface* nccl,
                     tensorflow::WorkerCacheInterface* cache, const std::string& task,
                     const Settings* settings)
      : CollectiveParamResolverDistributed(config, devices, resolver, nccl, cache, task),
        settings_(settings) {}

  // For operations of this task.
  void CompleteParamsAsync(const tensorflow::DeviceAttributes& device,
                           tensorflow::CollectiveParams* params,
                           tensorflow::CancellationManager* cancellation,
                           const tensorflow::StatusCallback& done) override;
  // For operations of this task, and for other tasks, if this one leads the group.
  void CompleteGroupAsync(const tensorflow::DeviceAttributes& device,
                          tensorflow::CollGroupParams* group,
                          tensorflow::CancellationManager* cancellation,
                          const tensorflow::StatusCallback& done) override;

 private:
  tensorflow::DeviceAttributes Described(const tensorflow::DeviceAttributes& device) const;
  absl::Status Choose(tensorflow::CollectiveParams* params);
  void ReportRing(const tensorflow::CollGroupParams& group, const std::string& why_not);

  const Settings* const settings_;
  std::mutex mu_;
  std::set<int> reported_;  // groups that use the ring
};

}  // namespace rdma_transport
