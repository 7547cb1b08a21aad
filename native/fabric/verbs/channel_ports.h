// What a channel has on each port of its device before it is connected: the registration of its
// ring, and queue pairs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/inbox.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/windows.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-compatible; guarded by the channel's lock.
class ChannelPorts {
 public:
  // Sizes of the queue pairs. Only the first of each port has receives.
  struct Queues {
    int depth = 0;
    int receives = 0;
    uint32_t tag = 0;  // of the first queue pair; those that follow have the next ones
  };

  // Creates queue pairs on each port, registers the ring there, and makes its windows. A port that
  // refuses is left out. Returns the first error if all do.
  Status Open(const std::vector<Adapter*>& adapters, const Region& ring, const Queues& queues,
              Windows* windows);
  // Returns what Open() made, for the peer. The caller adds what is not of a port.
  const ChannelAddress& address() const { return address_; }
  // What Match() returns, by queue pair.
  struct Matched {
    std::vector<std::shared_ptr<QueuePair>> pairs;
    std::vector<size_t> targets;  // the peer's queue pairs in its address
    Registrations rings;          // of the ring; by port, unlike the others
  };
  // Transfers the queue pairs that are to be connected to those of the peer, and the ring's
  // registrations with their ports, and destroys the others. The windows of the ring get the order
  // of the queue pairs; those that take no receives have none. Returns Unavailable if there are no
  // queue pairs.
  Status Match(const ChannelAddress& peer, Role role, Windows* windows, Matched* matched);
  // Destroys what Match() has not transferred.
  void Close();

 private:
  struct Prepared {
    std::shared_ptr<Registration> ring;
    std::vector<std::shared_ptr<QueuePair>> pairs;
  };

  static Status Prepare(Adapter* adapter, const Region& ring, size_t count, const Queues& queues,
                        Prepared* prepared);
  void Describe(const Adapter& adapter, const Prepared& prepared);

  ChannelAddress address_;
  Registrations rings_;                            // by port of the address
  std::vector<std::shared_ptr<QueuePair>> pairs_;  // as in the address
};

}  // namespace rdma_transport::fabric::verbs
