// A handle of a send or a receive.
#pragma once

#include <memory>
#include <utility>

#include "base/status.h"
#include "collectives/mesh_state.h"

namespace rdma_transport::collectives {

// Thread-safe. May outlive the mesh, which ends it.
class MessageRequest {
 public:
  MessageRequest(std::shared_ptr<MeshState> state, std::shared_ptr<MessageCall> call)
      : state_(std::move(state)), call_(std::move(call)) {}

  // Returns whether it is done, and looks for a silent member if not.
  bool Test() const;
  // Waits until it is done, and returns its status. If the wait ends first: DeadlineExceeded or
  // Cancelled; the call goes on.
  Status Wait(const Patience& patience) const;
  // Withdraws a receive that no message has matched, which is not done then, and returns true.
  // Other calls go on.
  bool Cancel() const;
  // Returns the receive; null if it is a send. Its message is valid when it is done.
  Receive* receive() const { return dynamic_cast<Receive*>(call_.get()); }

 private:
  const std::shared_ptr<MeshState> state_;
  const std::shared_ptr<MessageCall> call_;
};

}  // namespace rdma_transport::collectives
