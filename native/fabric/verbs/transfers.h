// The one-sided operations of a channel.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/host/transfer_base.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-compatible; guarded by the channel's lock.
class Transfers : public host::TransferBase<RegionRecord> {
 public:
  // Pushes `work` to the queue pair, in work requests of at most `chunk` bytes. `region` is by
  // Check() of `span`. If `proof` is not null, a read of one byte to there follows a write, which
  // then ends with it: it does not pass the write on its way into the peer's memory.
  static void Push(Work work, const RemoteSpan& span, const RegionRecord& region, uint64_t chunk,
                   QueuePair* pair, const Registration* proof);
};

}  // namespace rdma_transport::fabric::verbs
