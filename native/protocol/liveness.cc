#include "protocol/liveness.h"

namespace rdma_transport {

Liveness::Verdict Liveness::Check(Nanos now, Nanos timeout, bool excuse) {
  if (idle_ || heard_ || excuse) {
    idle_ = heard_ = pinged_ = false;
    silent_since_ = now;
    return Verdict::kFine;
  }
  if (Silence(now) >= timeout) return Verdict::kSilent;
  if (pinged_ || Silence(now) < timeout / 8) return Verdict::kFine;
  pinged_ = true;
  return Verdict::kPing;
}

}  // namespace rdma_transport
