#include "base/liveness.h"

namespace rdma_transport {

Liveness::Verdict Liveness::Check(Nanos now, Nanos timeout, bool excuse) {
  if (idle_ || heard_ || excuse) {
    idle_ = heard_ = pinged_ = false;
    silent_since_ = now;
    return Verdict::kFine;
  }
  const Nanos ping_after = timeout / 8;
  if (pinged_) return now - pinged_at_ >= timeout - ping_after ? Verdict::kSilent : Verdict::kFine;
  if (Silence(now) < ping_after) return Verdict::kFine;
  pinged_ = true;
  pinged_at_ = now;
  return Verdict::kPing;
}

}  // namespace rdma_transport
