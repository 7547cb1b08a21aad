// The steps that failed lately. A master uses them to cancel calls that it makes after a failure.
//
// When a part of a step fails, TensorFlow's master cancels the calls of the other parts. A call
// that it makes at that very moment misses this, because its CallOptions cannot be cancelled yet,
// and the step then waits for a part that may never end. So a call asks here whether its step has
// failed, once it can be cancelled.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace rdma_transport {

// Notes the outcome of a part of a step, before TensorFlow gets it. Thread-safe. Only errors for
// which the master cancels are kept, those of the last 64 steps that failed.
void NoteOutcome(int64_t step_id, const absl::Status& status);

// Returns whether a part of this step has failed lately. Thread-safe.
bool HasFailed(int64_t step_id);

}  // namespace rdma_transport
