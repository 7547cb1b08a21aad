// Answers calls from other processes: a door where they learn how to connect, and a session for
// each that did.
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

class RpcServer {
 public:
  static constexpr size_t kMaxSessions = 1024;

  // Beyond `most_sessions`, who comes takes the place of the one that has been idle for longest,
  // which connects again when it next asks.
  RpcServer(const Context& context, Handler handler, size_t most_sessions = kMaxSessions);
  ~RpcServer() { Stop(); }

  // `port` 0: any that is free.
  Status Start(int port) {
    return listener_.Open(port, [this](auto* asked) { return Meet(asked); });
  }
  int port() const { return listener_.port(); }
  // Returns when every handler has; none is called afterwards.
  void Stop();

 private:
  std::string Meet(const std::string* request);
  Status Admit(const std::string& request, AnsweringHandshake* handshake, std::string* channel);
  void LookAfterSessions();
  bool MakeRoomLocked();

  const Context context_;
  const Handler handler_;
  const size_t most_sessions_;
  const std::shared_ptr<ThreadPool> thread_pool_ = std::make_shared<ThreadPool>();
  std::mutex mu_;
  std::vector<std::shared_ptr<Session>> sessions_;
  Listener listener_;
};

}  // namespace rdma_transport::rpc
