// A tensor in transit, as bytes. Its data type is an opaque number to this layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/owner_ref.h"
#include "base/status.h"
#include "fabric/fabric.h"
#include "protocol/counters.h"
#include "protocol/release.h"

namespace rdma_transport {

struct EdgePlan;

// A tensor to be sent. `key`, `dims` and `data` are borrowed for the call, `data` for as long as
// `owner` lives.
struct Outgoing {
  int64_t step = 0;
  std::string_view key;  // of the edge within the step; opaque
  uint32_t dtype = 0;
  bool dead = false;
  const int64_t* dims = nullptr;
  int rank = 0;
  const char* data = nullptr;
  const char* block = nullptr;  // the allocation that contains `data`, or null if unknown
  uint64_t bytes = 0;
  OwnerRef owner;                        // keeps `data` alive and unchanged
  bool on_device = false;                // `data` lies in memory that only cards can read
  bool mutable_source = false;           // `data` may be overwritten despite `owner`: copy it now
  const char* not_carried = nullptr;     // why the fabric cannot carry it, or null if it can
  std::shared_ptr<const EdgePlan> plan;  // of its edge, or null if there is none
  // The sender waits until `owner` is dropped, so the receiver must release it soon. Never true for
  // a static edge.
  bool blocks_until_release = false;
};

// Sends one tensor over TensorFlow's own transport, where the receiver's RecvTensor call finds it.
class FallbackSend {
 public:
  virtual ~FallbackSend() = default;
  // Called at most once, on any thread. Returns an error if the step must fail.
  virtual Status Send() = 0;
  // Returns an owned object for a later Send(), which keeps alive what that needs. With `copy`, it
  // copies the tensor, which may be overwritten in the meantime.
  virtual std::unique_ptr<FallbackSend> Keep(bool copy) = 0;
  // The tensor cannot be delivered: fails its step.
  virtual void Fail(const Status& status) = 0;
};

// What a receiver gets, exactly once. If `status` is not OK, only `error` may be set beside it.
struct Delivery {
  Status status;
  std::string error;  // if a task aborted the step, the `error` of its Endpoint::AbortStep()
  uint32_t dtype = 0;
  bool dead = false;
  std::vector<int64_t> dims;
  const char* data = nullptr;
  uint64_t bytes = 0;
  OwnerRef owner;          // keeps `data` readable; dropping it notifies the producer
  bool exclusive = false;  // nothing else reads or writes `data`
  bool checked = false;    // `checksum` is the sender's checksum of the bytes
  uint32_t checksum = 0;
  Mode mode = Mode::kInline;
  uint64_t arrival = 0;  // from Trace::Arrived()
  // If set, the receiver may send it: it then reads later tensors of this edge itself, from the
  // sender's memory to where it wants them.
  ReadLater read_later;
};

}  // namespace rdma_transport
