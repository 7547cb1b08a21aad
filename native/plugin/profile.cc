#include "plugin/profile.h"

#include <string>

#include "base/checksum.h"

namespace rdma_transport {
namespace {

using tsl::profiler::ContextType;
using tsl::profiler::GetCurrentTimeNanos;
using tsl::profiler::TraceMeEncode;
using tsl::profiler::TraceMeLevel;
using tsl::profiler::TraceMeRecorder;

// Steps have random numbers, and keys are unique in a step.
uint64_t IdOf(const ProfiledTensor& tensor) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const uint64_t key = ChecksumOf(tensor.key.data(), tensor.key.size());
  return static_cast<uint64_t>(tensor.step) ^ (key + 1) * kOdd;
}

}  // namespace

void ProfiledSend::Start(const ProfiledTensor& tensor, uint64_t bytes) {
  event_.emplace(
      [&] {
        return TraceMeEncode("rdma send", {{"key", tensor.key},
                                           {"peer", tensor.peer},
                                           {"step_id", tensor.step},
                                           {"bytes", bytes}});
      },
      ContextType::kGeneric, IdOf(tensor), TraceMeLevel::kInfo);
}

void ProfiledSend::SetMode(Mode mode) {
  if (!event_.has_value()) return;
  event_->AppendMetadata([&] { return TraceMeEncode({{"mode", ModeName(mode)}}); });
}

void ProfiledReceive::Start(const ProfiledTensor& tensor, uint64_t bytes, Mode mode) {
  event_.emplace(
      [&] {
        return TraceMeEncode("rdma receive", {{"key", tensor.key},
                                              {"peer", tensor.peer},
                                              {"step_id", tensor.step},
                                              {"bytes", bytes},
                                              {"mode", ModeName(mode)}});
      },
      ContextType::kGeneric, IdOf(tensor), TraceMeLevel::kInfo);
}

void ProfiledSpan::RecordWait(const ProfiledTensor& tensor) const {
  TraceMeRecorder::Record(
      {TraceMeEncode("rdma wait",
                     {{"key", tensor.key}, {"peer", tensor.peer}, {"step_id", tensor.step}}),
       begin_, GetCurrentTimeNanos()});
}

void ProfiledSpan::RecordCopy(absl::string_view direction, uint64_t bytes) const {
  TraceMeRecorder::Record({TraceMeEncode("rdma copy", {{"direction", direction}, {"bytes", bytes}}),
                           begin_, GetCurrentTimeNanos()});
}

}  // namespace rdma_transport
