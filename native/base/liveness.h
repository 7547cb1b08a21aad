// Decides when a connected peer counts as silent: something waits for it, and it sends nothing, not
// even the answer to a ping.
#pragma once

#include "base/clock.h"

namespace rdma_transport {

// Serves one link. Polling thread only.
class Liveness {
 public:
  enum class Verdict { kFine, kPing, kSilent };

  // The peer sent something.
  void OnHeard() { heard_ = true; }
  // Nothing waits for the peer, so its silence does not count.
  void OnIdle() { idle_ = true; }
  // Something waits for the peer. Returns kPing once, after an eighth of `timeout`, and kSilent
  // from `timeout` on, if the peer had seven eighths of it to answer the ping: this may be called
  // late, and a peer that was never asked has nothing to say. With `excuse`, this process itself
  // was not running, so the silence until now does not count.
  Verdict Check(Nanos now, Nanos timeout, bool excuse);
  // How long the peer has been silent at `now`.
  Nanos Silence(Nanos now) const { return now - silent_since_; }

 private:
  bool heard_ = false;
  bool idle_ = true;
  bool pinged_ = false;
  Nanos pinged_at_ = 0;
  Nanos silent_since_ = 0;
};

}  // namespace rdma_transport
