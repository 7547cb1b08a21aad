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

namespace rdma_transport::exchange {

class Responder {
 public:
  Responder(const Context& context, Handler handler);
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
  Status Admit(const std::string& request, std::string* channel);
  void LookAfterSessions();

  const Context context_;
  const Handler handler_;
  const std::shared_ptr<Crew> crew_ = std::make_shared<Crew>();
  std::mutex mu_;
  std::vector<std::shared_ptr<Session>> sessions_;
  Door door_;
};

}  // namespace rdma_transport::exchange
