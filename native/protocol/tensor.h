// A tensor on its way, in terms of bytes: the data type is an opaque number to this layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "protocol/counters.h"
#include "protocol/owner_ref.h"

namespace rdma_transport {

struct Outgoing {
  int64_t step = 0;
  std::string_view key;  // of the edge within the step; opaque
  uint32_t dtype = 0;
  bool dead = false;
  const int64_t* dims = nullptr;
  int rank = 0;
  const char* data = nullptr;
  const char* block = nullptr;  // the allocation in which `data` lies; null: not known
  uint64_t bytes = 0;
  OwnerRef owner;                     // keeps `data` alive and unchanged
  bool mutable_source = false;        // somebody may overwrite `data` all the same: copy it now
  const char* not_carried = nullptr;  // why the fabric cannot carry it; null: it can
  // The sender waits for `owner` to be let go: the receiver shall not dawdle. Never a static
  // edge's.
  bool blocks_until_release = false;
};

// Hands a tensor to TensorFlow's own transport, where the receiver's call finds it.
class FallbackSend {
 public:
  virtual ~FallbackSend() = default;
  virtual Status Send() = 0;
  // The same, for later: keeps alive what Send() needs. `copy`: somebody may overwrite the tensor
  // meanwhile.
  virtual std::unique_ptr<FallbackSend> Keep(bool copy) = 0;
  // Nobody will ever get the tensor: its step must fail.
  virtual void Fail(const Status& status) = 0;
};

// What a receiver gets, exactly once.
struct Delivery {
  Status status;
  std::string error;  // if the peer aborted the step: what its Endpoint::AbortStep() was given
  uint32_t dtype = 0;
  bool dead = false;
  std::vector<int64_t> dims;
  const char* data = nullptr;
  uint64_t bytes = 0;
  OwnerRef lease;          // keeps `data` readable; letting go tells the producer
  bool exclusive = false;  // nobody else reads or writes `data`
  bool checked = false;    // `checksum` is what the sender made of its bytes
  uint32_t checksum = 0;
  Mode mode = Mode::kInline;
  uint64_t arrival = 0;  // of Trace::Arrived()
};

}  // namespace rdma_transport
