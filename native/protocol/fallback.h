// The tensors of one task that the fabric does not carry: whether TensorFlow's own transport may,
// and what their receivers must know.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "protocol/links.h"
#include "protocol/pending_recv.h"
#include "protocol/tensor.h"
#include "protocol/unacked_sends.h"

namespace rdma_transport {

// Thread-safe. Must not outlive `links`. With RDMA_TRANSPORT_FALLBACK=forbid nothing falls back,
// and the step of the tensor fails.
class Fallback {
 public:
  Fallback(const Settings& settings, const Links* links) : settings_(settings), links_(links) {}

  // Sends a tensor by `transport`, and notifies its receiver on all links, also on those that come
  // up before the receiver has fetched it. Returns FailedPrecondition if that is forbidden.
  Status Send(Traffic* traffic, int64_t step, std::string_view key, uint64_t bytes,
              const std::string& reason, FallbackSend* transport);
  // Sends a tensor that may have been lost with its link, or fails its step.
  void SendLost(Traffic* traffic, UnackedTensor lost);

  // A tensor could not be sent. Its receiver alone fails: it asks TensorFlow's transport, which
  // finds the same error, or is refused if that is forbidden.
  void FailOne(Traffic* traffic, int64_t step, std::string_view key, const std::string& reason,
               FallbackSend* transport);

  // Makes `recv` fetch a tensor of `from` over TensorFlow's transport, or fails it with
  // FailedPrecondition.
  void Receive(const std::string& from, const std::shared_ptr<PendingRecv>& recv,
               const std::string& reason) const;

  // The receiver has fetched a tensor, of Send() or another one.
  void Fetched(int64_t step, std::string_view key);
  void EndStep(int64_t step);
  // A link came up: notifies its peer of what waits here to be fetched.
  void OnLinkUp(Link* link);

 private:
  // The tensors of one key that TensorFlow's transport keeps until they are fetched.
  struct Pending {
    PeerId peer;
    uint32_t tensors = 0;
  };
  using Waiting = std::map<std::string, Pending, std::less<>>;  // by key
  void Record(PeerId peer, int64_t step, std::string_view key);
  void Notify(PeerId peer, int64_t step, std::string_view key, const std::string& reason);
  bool IsWaiting(int64_t step, std::string_view key);

  const Settings& settings_;
  const Links* const links_;

  std::mutex mu_;
  std::map<int64_t, Waiting> steps_;
};

}  // namespace rdma_transport
