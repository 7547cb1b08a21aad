#include "plugin/device_collective.h"

#include <memory>
#include <utility>

#include "plugin/device_memory.h"

namespace rdma_transport {

namespace tf = tensorflow;

void PostFromDevice(CollectiveStep* step, const CollectiveTransferArgs& args,
                    const tf::Tensor& tensor, tf::Allocator* host, Peer* peer) {
  const tf::Tensor copy(host, tensor.dtype(), tensor.shape());
  if (!copy.IsInitialized()) {
    return args.done(absl::ResourceExhaustedError(
        "no memory of the host for a copy of a collective's buffer of " + args.device->name()));
  }
  const auto post = std::make_shared<CollectivePost>(step, args, copy, tensor);
  CopyToHost(args.context, args.device, tensor, copy,
             [post, peer, done = args.done](const absl::Status& status) {
               if (!status.ok()) return done(status);
               CollectivePost::Run(post, peer);
             });
}

}  // namespace rdma_transport
