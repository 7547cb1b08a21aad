// Memory of this process that a peer maps and names here again.
#pragma once

#include <memory>
#include <utility>

#include "fabric/fabric.h"

namespace rdma_transport {

// What a kReceiverOwned message means. The memory is on loan to the peer, which hears no
// OnReleased() while `holder` lives, and so keeps what the loan stands for.
inline fabric::MappedSpan MapReceiverOwned(fabric::Device* device, const fabric::Channel& channel,
                                           const fabric::RemoteSpan& span) {
  fabric::MappedSpan mapped = device->MapOwn(span);
  using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  mapped.holder = std::make_shared<Both>(std::move(mapped.holder), channel.Hold());
  return mapped;
}

}  // namespace rdma_transport
