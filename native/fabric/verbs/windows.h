// What one peer, and no other, may reach of this process: memory windows of type 2.
//
// A window is bound over a registration by a work request of one queue pair, and serves that queue
// pair alone. Whoever else learns its key, and whatever else the peer connects, gets nothing by it.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "fabric/verbs/adapter.h"

namespace rdma_transport::fabric::verbs {

class Window {
 public:
  static Status Create(Adapter* adapter, std::shared_ptr<Registration> memory,
                       std::unique_ptr<Window>* window);
  // The peer reaches nothing by it any more. Its queue pair and its memory must still be there.
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // What the peer is told: valid once it is bound.
  uint32_t rkey() const { return rkey_; }
  // The request that binds it to the queue pair where it is posted; at most once.
  void FillBind(ibv_send_wr* request) const;

 private:
  Window(Adapter* adapter, std::shared_ptr<Registration> memory, ibv_mw* window);

  Adapter* const adapter_;
  const std::shared_ptr<Registration> memory_;
  ibv_mw* const window_;
  const uint32_t rkey_;
};

// Those of a channel. Thread-compatible: the channel's lock guards it.
class Windows {
 public:
  explicit Windows(Adapter* adapter) : adapter_(adapter) {}

  // Makes `count` windows over the memory of that key, one for each queue pair, to be bound.
  Status Make(uint64_t key, const std::shared_ptr<Registration>& memory, size_t count);
  // In the order of the queue pairs; empty: none were made.
  std::vector<Window*> Of(uint64_t key) const;
  // The request that binds it is on its way, or was; nobody must refer to it any more once it
  // ended.
  void OnBinding(const Window* window) { binding_[window] = nullptr; }
  void OnBound(const Window* window) { binding_.erase(window); }

  // Takes the memory of that key away from the peer. What is just being bound ends when it is.
  void Revoke(uint64_t key);
  // No request refers to any of them.
  void Clear();

 private:
  Adapter* const adapter_;
  std::map<uint64_t, std::vector<std::unique_ptr<Window>>> windows_;  // by key
  // The ones that a request refers to, and of these the revoked ones themselves.
  std::map<const Window*, std::unique_ptr<Window>> binding_;
};

}  // namespace rdma_transport::fabric::verbs
