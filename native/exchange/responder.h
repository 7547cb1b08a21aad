// Answers calls from other processes: a door where they learn how to connect, and a session for
// each that did.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exchange/context.h"
#include "exchange/crew.h"
#include "exchange/door.h"
#include "exchange/message.h"
#include "exchange/session.h"
#include "protocol/handshake.h"

namespace rdma_transport::exchange {

class Responder {
 public:
  static constexpr size_t kMostSessions = 1024;

  // Beyond `most_sessions`, who comes takes the place of the one that has been idle for longest,
  // which connects again when it next asks.
  Responder(const Context& context, Handler handler, size_t most_sessions = kMostSessions);
  ~Responder() { Stop(); }

  // `port` 0: any that is free.
  Status Start(int port) {
    return door_.Open(port, [this](auto* asked) { return Meet(asked); });
  }
  int port() const { return door_.port(); }
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
  const std::shared_ptr<Crew> crew_ = std::make_shared<Crew>();
  std::mutex mu_;
  std::vector<std::shared_ptr<Session>> sessions_;
  Door door_;
};

}  // namespace rdma_transport::exchange
