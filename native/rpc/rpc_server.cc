#include "rpc/rpc_server.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "protocol/bootstrap.h"

namespace rdma_transport::rpc {

RpcServer::RpcServer(const Context& context, Handler handler, size_t max_sessions)
    : context_(context), handler_(std::move(handler)), max_sessions_(max_sessions) {}

std::string RpcServer::Answer(const std::string* request) {
  CleanUpSessions();
  if (request == nullptr) return std::string();
  BootstrapReply reply;
  reply.version = kVersion;
  reply.from.task = context_.name;
  AnsweringHandshake handshake(context_.secret_file, kService);
  const Status status = Admit(*request, &handshake, &reply.channel);
  if (!status.ok()) {
    reply.channel.clear();
    reply.refusal = status.message();
  }
  handshake.Sign(&reply);
  return reply.Encode();
}

Status RpcServer::Admit(const std::string& request, AnsweringHandshake* handshake,
                        std::string* channel) {
  BootstrapRequest decoded;
  RDMA_RETURN_IF_ERROR(BootstrapRequest::Decode(request, &decoded));
  if (decoded.version != kVersion) {
    return Status(Code::kFailedPrecondition, "it uses RPC version " + std::to_string(kVersion) +
                                                 ", this process version " +
                                                 std::to_string(decoded.version));
  }
  RDMA_RETURN_IF_ERROR(handshake->Check(decoded));
  std::lock_guard<std::mutex> lock(mu_);
  if (sessions_.size() >= max_sessions_ && !MakeRoomLocked()) {
    return Status(Code::kResourceExhausted, "it already serves its maximum number of clients");
  }
  auto session =
      std::make_shared<Session>(context_, decoded.from.task, handler_,
                                [pool = thread_pool_](auto work) { pool->Run(std::move(work)); });
  RDMA_RETURN_IF_ERROR(session->Open(decoded.channel, handshake->channel_key(), channel));
  sessions_.push_back(std::move(session));
  return OkStatus();
}

// Returns false if all sessions are in use.
bool RpcServer::MakeRoomLocked() {
  auto idlest = sessions_.end();
  Nanos since = 0;
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    const Nanos idle = (*it)->IdleSince();
    if (idle == 0 || (since != 0 && idle >= since)) continue;
    idlest = it;
    since = idle;
  }
  if (idlest == sessions_.end() || !(*idlest)->QuitIfIdle()) return false;
  (*idlest)->Close("it was idle, and another client needed its place");
  sessions_.erase(idlest);
  return true;
}

void RpcServer::CleanUpSessions() {
  std::vector<std::shared_ptr<Session>> ended;
  const Nanos now = Now();
  std::lock_guard<std::mutex> lock(mu_);
  const auto open = std::partition(sessions_.begin(), sessions_.end(),
                                   [](const auto& session) { return !session->closed(); });
  ended.assign(open, sessions_.end());
  sessions_.erase(open, sessions_.end());
  for (const auto& session : sessions_) {
    if (session->Overdue(now)) session->Close("the client did not connect in time");
  }
}

void RpcServer::Stop() {
  listener_.Close();
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& session : sessions_) session->Quit();
  thread_pool_->Shutdown();
  for (const auto& session : sessions_) session->Close("the worker stopped");
  sessions_.clear();
}

}  // namespace rdma_transport::rpc
