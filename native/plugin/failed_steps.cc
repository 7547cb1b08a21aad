#include "plugin/failed_steps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>

#include "tensorflow/core/platform/status.h"

namespace rdma_transport {
namespace {

std::mutex mu;
std::array<int64_t, 64> failed = {};  // step IDs; 0 is none
size_t next = 0;

bool Find(int64_t step_id) {
  return std::find(failed.begin(), failed.end(), step_id) != failed.end();
}

}  // namespace

void NoteOutcome(int64_t step_id, const absl::Status& status) {
  if (status.ok() || tsl::StatusGroup::IsDerived(status)) return;
  std::lock_guard<std::mutex> lock(mu);
  if (Find(step_id)) return;
  failed[next] = step_id;
  next = (next + 1) % failed.size();
}

bool HasFailed(int64_t step_id) {
  std::lock_guard<std::mutex> lock(mu);
  return step_id != 0 && Find(step_id);
}

}  // namespace rdma_transport
