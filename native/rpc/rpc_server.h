// Answers calls from other processes: a listener through which they connect, and a session for
// each.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/handshake.h"
#include "rpc/context.h"
#include "rpc/listener.h"
#include "rpc/message.h"
#include "rpc/session.h"
#include "rpc/thread_pool.h"

namespace rdma_transport::rpc {

// Thread-safe.
class RpcServer {
 public:
  static constexpr size_t kMaxSessions = 1024;

  // Beyond `max_sessions`, a new client replaces the session that has been idle for longest, whose
  // client reconnects for its next call.
  RpcServer(const Context& context, Handler handler, size_t max_sessions = kMaxSessions);
  ~RpcServer() { Stop(); }

  // Listens on `port`, or on any free port if it is 0.
  Status Start(int port) {
    return listener_.Open(port, [this](auto* request) { return Answer(request); });
  }
  int port() const { return listener_.port(); }
  // Waits until all handlers have returned. No handler is called afterwards.
  void Stop();

 private:
  std::string Answer(const std::string* request);
  Status Admit(const std::string& request, AnsweringHandshake* handshake, std::string* channel);
  void CleanUpSessions();
  bool MakeRoomLocked();

  const Context context_;
  const Handler handler_;
  const size_t max_sessions_;
  const std::shared_ptr<ThreadPool> thread_pool_ = std::make_shared<ThreadPool>();
  std::mutex mu_;
  std::vector<std::shared_ptr<Session>> sessions_;
  Listener listener_;
};

}  // namespace rdma_transport::rpc
