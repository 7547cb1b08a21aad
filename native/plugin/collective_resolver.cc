#include "plugin/collective_resolver.h"

#include "base/log.h"
#include "plugin/collective_choice.h"
#include "plugin/direct_reduce.h"
#include "protocol/counters.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_transport {

namespace tf = tensorflow;

tf::DeviceAttributes CollectiveResolver::Described(const tf::DeviceAttributes& device) const {
  tf::DeviceAttributes described = device;
  DescribeMember(*settings_, &described);
  return described;
}

void CollectiveResolver::CompleteGroupAsync(const tf::DeviceAttributes& device,
                                            tf::CollGroupParams* group,
                                            tf::CancellationManager* cancellation,
                                            const tf::StatusCallback& done) {
  const bool own = tf::DeviceNameUtils::IsSameAddressSpace(device.name(), task_name_);
  CollectiveParamResolverDistributed::CompleteGroupAsync(own ? Described(device) : device, group,
                                                         cancellation, done);
}

void CollectiveResolver::CompleteParamsAsync(const tf::DeviceAttributes& device,
                                             tf::CollectiveParams* params,
                                             tf::CancellationManager* cancellation,
                                             const tf::StatusCallback& done) {
  const bool scatters = params->instance.type == tf::REDUCE_SCATTER_COLLECTIVE &&
                        params->group.device_type == tf::DEVICE_CPU;
  const tf::TensorShape shape = params->instance.shape;
  if (scatters) {
    // TensorFlow rejects a reduce-scatter on processors while it resolves the parameters. To it
    // this is a reduction with one dimension more, so that it notices members that all-reduce.
    params->instance.type = tf::REDUCTION_COLLECTIVE;
    params->instance.shape.AddDim(1);
  }
  CollectiveParamResolverDistributed::CompleteParamsAsync(
      Described(device), params, cancellation,
      [this, params, scatters, shape, done](absl::Status status) {
        if (scatters) {
          params->instance.type = tf::REDUCE_SCATTER_COLLECTIVE;
          params->instance.shape = shape;
        }
        if (status.ok()) status = Choose(params);
        done(status);
      });
}

absl::Status CollectiveResolver::Choose(tf::CollectiveParams* params) {
  if (params->group.device_type != tf::DEVICE_CPU) return absl::OkStatus();
  if (params->instance.type == tf::REDUCE_SCATTER_COLLECTIVE) {
    const std::string why_not = WhyNotOurs(params->group);
    if (!why_not.empty()) {
      return absl::UnimplementedError("a reduce-scatter on processors: " + why_not);
    }
  } else if (params->instance.type == tf::REDUCTION_COLLECTIVE) {
    const std::string why_not = WhyNotDirect(params->group);
    if (!why_not.empty()) {
      ReportRing(params->group, why_not);
      return absl::OkStatus();
    }
  } else {
    return absl::OkStatus();
  }
  params->instance.impl_details.collective_name = kDirectReduce;
  return absl::OkStatus();
}

void CollectiveResolver::ReportRing(const tf::CollGroupParams& group, const std::string& why_not) {
  GlobalCounters().ring_reasons.Add(why_not);
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!reported_.insert(group.group_key).second) return;
  }
  Log(LogLevel::kInfo,
      "reductions of group " + std::to_string(group.group_key) + ": ring: " + why_not);
}

}  // namespace rdma_transport
