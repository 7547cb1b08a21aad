// Memory windows of type 2: they grant one peer access to memory of this process.
//
// A work request of a queue pair binds a window to a registration. The window is valid on that
// queue pair only, so its key is useless to other processes and on other connections of the peer.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <memory>

#include "base/status.h"
#include "fabric/verbs/adapter.h"

namespace rdma_transport::fabric::verbs {

// Not thread-safe.
class Window {
 public:
  static Status Create(std::shared_ptr<Registration> memory, std::unique_ptr<Window>* window);
  // Revokes the peer's access. The queue pair and the memory must still exist.
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Returns the key for the peer. It is valid once the window is bound.
  uint32_t rkey() const { return rkey_; }
  // Fills the request that binds the window to the queue pair where it is posted. Post it at most
  // once.
  void FillBind(ibv_send_wr* request) const;

 private:
  Window(std::shared_ptr<Registration> memory, ibv_mw* window);

  const std::shared_ptr<Registration> memory_;
  ibv_mw* const window_;
  const uint32_t rkey_;
};

// All windows of a channel, by the key of their region. Thread-compatible; guarded by the channel's
// lock.
class Windows {
 public:
  // Creates the window of a region, which must then be bound, if the region is accessible only
  // through windows.
  Status Make(uint64_t key, const std::shared_ptr<Registration>& memory);
  // Returns the window of a region, or null if there is none.
  Window* Of(uint64_t key) const;
  // OnBinding(): the binding request was pushed and refers to `window`. OnBound(): the request has
  // ended.
  void OnBinding(const Window* window) { binding_[window] = nullptr; }
  void OnBound(const Window* window) { binding_.erase(window); }

  // Revokes the peer's access to region `key`. A window that is being bound is destroyed when its
  // request has ended.
  void Revoke(uint64_t key);
  // Destroys all windows. No request may refer to them.
  void Clear();

 private:
  std::map<uint64_t, std::unique_ptr<Window>> windows_;  // by key
  // Windows that a request refers to. Those that are revoked meanwhile are owned here.
  std::map<const Window*, std::unique_ptr<Window>> binding_;
};

}  // namespace rdma_transport::fabric::verbs
