// The many calls that post a send, a write, a read or a receive.

#include "objects.h"

namespace faulty_libfabric {
namespace {

using Made = std::unique_ptr<Operation>;

Made Make(fid_ep* client, Kind kind, const iovec* buffers, void* const* descriptors, size_t count,
          fi_addr_t peer, void* context) {
  auto operation = std::make_unique<Operation>();
  operation->endpoint = As<Endpoint>(client);
  operation->kind = kind;
  operation->buffers.assign(buffers, buffers + count);
  if (descriptors != nullptr) operation->descriptors.assign(descriptors, descriptors + count);
  operation->peer = peer;
  operation->context = context;
  return operation;
}

Made Make(fid_ep* client, Kind kind, const void* buffer, size_t length, void* descriptor,
          fi_addr_t peer, void* context) {
  const iovec one = {const_cast<void*>(buffer), length};
  return Make(client, kind, &one, &descriptor, 1, peer, context);
}

// A post with flags of its own.
ssize_t PostWith(Made operation, uint64_t flags) {
  const Endpoint& endpoint = *operation->endpoint;
  const bool selective =
      operation->kind == Kind::kReceive ? endpoint.receive_selective : endpoint.transmit_selective;
  operation->flags = flags;
  operation->injected = (flags & FI_INJECT) != 0;
  operation->shows_success = !selective || (flags & FI_COMPLETION) != 0;
  return Post(std::move(operation));
}

// A post with the flags of the endpoint.
ssize_t PostPlain(Made operation, uint64_t more = 0) {
  const Endpoint& endpoint = *operation->endpoint;
  const uint64_t flags =
      operation->kind == Kind::kReceive ? endpoint.receive_flags : endpoint.transmit_flags;
  return PostWith(std::move(operation), (flags & ~FI_INJECT) | more);
}

ssize_t PostInjected(Made operation, uint64_t more = 0) {
  operation->flags = (operation->endpoint->transmit_flags & ~FI_COMPLETION) | FI_INJECT | more;
  operation->injected = true;
  operation->shows_success = false;
  return Post(std::move(operation));
}

Made At(Made operation, uint64_t address, uint64_t key) {
  operation->remote = {{address, Bytes(*operation), key}};
  return operation;
}

Made With(Made operation, uint64_t data) {
  operation->data = data;
  return operation;
}

ssize_t Recv(fid_ep* ep, void* buf, size_t len, void* desc, fi_addr_t peer, void* context) {
  return PostPlain(Make(ep, Kind::kReceive, buf, len, desc, peer, context));
}
ssize_t RecvV(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              void* context) {
  return PostPlain(Make(ep, Kind::kReceive, iov, desc, count, peer, context));
}
ssize_t RecvMsg(fid_ep* ep, const fi_msg* msg, uint64_t flags) {
  return PostWith(
      Make(ep, Kind::kReceive, msg->msg_iov, msg->desc, msg->iov_count, msg->addr, msg->context),
      flags);
}
ssize_t Send(fid_ep* ep, const void* buf, size_t len, void* desc, fi_addr_t peer, void* context) {
  return PostPlain(Make(ep, Kind::kSend, buf, len, desc, peer, context));
}
ssize_t SendV(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              void* context) {
  return PostPlain(Make(ep, Kind::kSend, iov, desc, count, peer, context));
}
ssize_t SendMsg(fid_ep* ep, const fi_msg* msg, uint64_t flags) {
  return PostWith(
      With(Make(ep, Kind::kSend, msg->msg_iov, msg->desc, msg->iov_count, msg->addr, msg->context),
           msg->data),
      flags);
}
ssize_t Inject(fid_ep* ep, const void* buf, size_t len, fi_addr_t peer) {
  return PostInjected(Make(ep, Kind::kSend, buf, len, nullptr, peer, nullptr));
}
ssize_t SendData(fid_ep* ep, const void* buf, size_t len, void* desc, uint64_t data, fi_addr_t peer,
                 void* context) {
  return PostPlain(With(Make(ep, Kind::kSend, buf, len, desc, peer, context), data),
                   FI_REMOTE_CQ_DATA);
}
ssize_t InjectData(fid_ep* ep, const void* buf, size_t len, uint64_t data, fi_addr_t peer) {
  return PostInjected(With(Make(ep, Kind::kSend, buf, len, nullptr, peer, nullptr), data),
                      FI_REMOTE_CQ_DATA);
}

Made Make(fid_ep* ep, Kind kind, const fi_msg_rma* msg) {
  Made made = Make(ep, kind, msg->msg_iov, msg->desc, msg->iov_count, msg->addr, msg->context);
  made->remote.assign(msg->rma_iov, msg->rma_iov + msg->rma_iov_count);
  return With(std::move(made), msg->data);
}

ssize_t Read(fid_ep* ep, void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
             uint64_t key, void* context) {
  return PostPlain(At(Make(ep, Kind::kRead, buf, len, desc, peer, context), addr, key));
}
ssize_t ReadV(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              uint64_t addr, uint64_t key, void* context) {
  return PostPlain(At(Make(ep, Kind::kRead, iov, desc, count, peer, context), addr, key));
}
ssize_t ReadMsg(fid_ep* ep, const fi_msg_rma* msg, uint64_t flags) {
  return PostWith(Make(ep, Kind::kRead, msg), flags);
}
ssize_t Write(fid_ep* ep, const void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
              uint64_t key, void* context) {
  return PostPlain(At(Make(ep, Kind::kWrite, buf, len, desc, peer, context), addr, key));
}
ssize_t WriteV(fid_ep* ep, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t addr, uint64_t key, void* context) {
  return PostPlain(At(Make(ep, Kind::kWrite, iov, desc, count, peer, context), addr, key));
}
ssize_t WriteMsg(fid_ep* ep, const fi_msg_rma* msg, uint64_t flags) {
  if ((flags & FI_REMOTE_CQ_DATA) != 0 && !Current()->writedata) return -FI_EBADFLAGS;
  return PostWith(Make(ep, Kind::kWrite, msg), flags);
}
ssize_t InjectWrite(fid_ep* ep, const void* buf, size_t len, fi_addr_t peer, uint64_t addr,
                    uint64_t key) {
  return PostInjected(At(Make(ep, Kind::kWrite, buf, len, nullptr, peer, nullptr), addr, key));
}
ssize_t WriteData(fid_ep* ep, const void* buf, size_t len, void* desc, uint64_t data,
                  fi_addr_t peer, uint64_t addr, uint64_t key, void* context) {
  if (!Current()->writedata) return -FI_ENOSYS;
  return PostPlain(With(At(Make(ep, Kind::kWrite, buf, len, desc, peer, context), addr, key), data),
                   FI_REMOTE_CQ_DATA);
}
ssize_t InjectWriteData(fid_ep* ep, const void* buf, size_t len, uint64_t data, fi_addr_t peer,
                        uint64_t addr, uint64_t key) {
  if (!Current()->writedata) return -FI_ENOSYS;
  return PostInjected(
      With(At(Make(ep, Kind::kWrite, buf, len, nullptr, peer, nullptr), addr, key), data),
      FI_REMOTE_CQ_DATA);
}

}  // namespace

fi_ops_msg* MessageOperations() {
  static fi_ops_msg table = {
      sizeof(fi_ops_msg), Recv, RecvV, RecvMsg, Send, SendV, SendMsg, Inject, SendData, InjectData};
  return &table;
}

fi_ops_rma* RmaOperations() {
  static fi_ops_rma table = {
      sizeof(fi_ops_rma), Read,        ReadV,     ReadMsg,        Write, WriteV,
      WriteMsg,           InjectWrite, WriteData, InjectWriteData};
  return &table;
}

}  // namespace faulty_libfabric
