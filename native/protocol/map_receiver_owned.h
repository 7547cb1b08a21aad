// Maps memory of this process that a peer names in a message.
#pragma once

#include <memory>
#include <utility>

#include "fabric/fabric.h"

namespace rdma_transport {

// Maps the memory of a kReceiverOwned message. The memory is an outstanding buffer for the peer.
// The peer gets no OnReleased() while `holder` lives, so it keeps its reference.
inline fabric::MappedSpan MapReceiverOwned(fabric::Device* device, const fabric::Channel& channel,
                                           const fabric::RemoteSpan& span) {
  fabric::MappedSpan mapped = device->MapOwn(span);
  using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  mapped.holder = std::make_shared<Both>(std::move(mapped.holder), channel.Hold());
  return mapped;
}

}  // namespace rdma_transport
