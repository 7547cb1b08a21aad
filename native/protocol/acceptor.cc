#include "protocol/acceptor.h"

#include <memory>

#include "protocol/handshake.h"

namespace rdma_transport {

std::string Acceptor::Answer(std::string_view request) {
  AnsweringHandshake handshake(runtime_->secret_file(), kTaskService);
  BootstrapReply reply;
  reply.version = kProtocolVersion;
  reply.from = self_;
  reply.refusal = Accept(request, &handshake, &reply).message();
  handshake.Sign(&reply);
  return reply.Encode();
}

Status Acceptor::Accept(std::string_view bytes, AnsweringHandshake* handshake,
                        BootstrapReply* reply) {
  BootstrapRequest request;
  RDMA_RETURN_IF_ERROR(BootstrapRequest::Decode(bytes, &request));
  if (request.version != kProtocolVersion) {
    return Status(Code::kFailedPrecondition,
                  "it uses protocol version " + std::to_string(kProtocolVersion) +
                      ", this task version " + std::to_string(request.version));
  }
  reply->again = true;  // the file with the secrets can be fixed while the job runs
  RDMA_RETURN_IF_ERROR(handshake->Check(request));
  reply->again = false;
  if (runtime_->device() == nullptr) {
    return Status(Code::kFailedPrecondition, "it has no fabric: " + runtime_->no_fabric_reason());
  }
  reply->again = true;
  if (!request.offer.empty()) return Confirm(request, reply);
  const Status admitted = links_->Admit(request.from.task);
  if (!admitted.ok()) {
    GlobalCounters().errors.Add("connection_refused");
    return admitted;
  }
  // The peer may be reconnecting because one of them is broken, or it may have restarted.
  links_->Probe(request.from.task);
  return Connect(request, handshake->channel_key(), reply);
}

Status Acceptor::Confirm(const BootstrapRequest& request, BootstrapReply* reply) {
  const Pairing::Usable confirmed =
      links_->pairing().Confirm(request.from.task, request.from.incarnation, request.offer);
  if (confirmed.id.empty()) return Status(Code::kNotFound, "it has not requested that connection");
  reply->use = confirmed.id;
  reply->use_up = confirmed.up;
  return OkStatus();
}

Status Acceptor::Connect(const BootstrapRequest& request, const std::string& channel_key,
                         BootstrapReply* reply) {
  const std::shared_ptr<Link> link =
      links_->Make(request.from.task, Now() + runtime_->settings().connect_timeout);
  link->set_id(request.link);
  const Pairing::Usable own =
      links_->pairing().Accept(request.from.task, request.from.incarnation, link, request.insist);
  if (!own.id.empty()) {
    reply->use = own.id;
    reply->use_up = own.up;
    return OkStatus();
  }
  RDMA_RETURN_IF_ERROR(link->Open());
  const Status connected =
      links_->Connect(link, request.from, channel_key, request.channel, fabric::Role::kPassive);
  if (!connected.ok()) {
    // Unavailable means that the address cannot be reached, which is permanent.
    reply->again = connected.code() != Code::kUnavailable;
    return connected;
  }
  reply->again = false;
  reply->channel = link->channel()->Address();
  return OkStatus();
}

}  // namespace rdma_transport
