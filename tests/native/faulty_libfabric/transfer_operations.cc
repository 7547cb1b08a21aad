// The calls that post a send, a write, a read or a receive. The others are -FI_ENOSYS.

#include "objects.h"

namespace faulty_libfabric {
namespace {

struct Posted {
  Kind kind;
  iovec buffer;
  void* descriptor;
  fi_addr_t peer;
  void* context;
  fi_rma_iov remote = {};
  uint64_t data = 0;
  uint64_t flags = 0;
};

ssize_t PostTo(fid_ep* client, const Posted& posted) {
  auto operation = std::make_unique<Operation>();
  operation->endpoint = As<Endpoint>(client);
  operation->kind = posted.kind;
  operation->buffer = posted.buffer;
  operation->descriptor = posted.descriptor;
  operation->peer = posted.peer;
  operation->context = posted.context;
  operation->remote = posted.remote;
  operation->data = posted.data;
  operation->flags = posted.flags;
  return Post(std::move(operation));
}

iovec Buffer(const void* begin, size_t length) { return {const_cast<void*>(begin), length}; }

ssize_t Recv(fid_ep* ep, void* buf, size_t len, void* desc, fi_addr_t peer, void* context) {
  return PostTo(ep, {Kind::kReceive, Buffer(buf, len), desc, peer, context});
}
ssize_t Send(fid_ep* ep, const void* buf, size_t len, void* desc, fi_addr_t peer, void* context) {
  return PostTo(ep, {Kind::kSend, Buffer(buf, len), desc, peer, context});
}
ssize_t SendData(fid_ep* ep, const void* buf, size_t len, void* desc, uint64_t data, fi_addr_t peer,
                 void* context) {
  return PostTo(ep,
                {Kind::kSend, Buffer(buf, len), desc, peer, context, {}, data, FI_REMOTE_CQ_DATA});
}
ssize_t Read(fid_ep* ep, void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
             uint64_t key, void* context) {
  return PostTo(ep, {Kind::kRead, Buffer(buf, len), desc, peer, context, {addr, len, key}});
}
ssize_t WriteMsg(fid_ep* ep, const fi_msg_rma* msg, uint64_t flags) {
  if ((flags & FI_REMOTE_CQ_DATA) != 0 && !Current()->writedata) return -FI_EBADFLAGS;
  if ((flags & FI_FENCE) != 0) return -FI_EBADFLAGS;
  if (msg->iov_count != 1 || msg->rma_iov_count != 1 || (flags & FI_INJECT) != 0) {
    return -FI_ENOSYS;
  }
  return PostTo(ep, {Kind::kWrite, *msg->msg_iov, msg->desc == nullptr ? nullptr : msg->desc[0],
                     msg->addr, msg->context, *msg->rma_iov, msg->data, flags});
}
ssize_t WriteData(fid_ep* ep, const void* buf, size_t len, void* desc, uint64_t data,
                  fi_addr_t peer, uint64_t addr, uint64_t key, void* context) {
  if (!Current()->writedata) return -FI_ENOSYS;
  return PostTo(ep, {Kind::kWrite,
                     Buffer(buf, len),
                     desc,
                     peer,
                     context,
                     {addr, len, key},
                     data,
                     FI_REMOTE_CQ_DATA});
}

}  // namespace

fi_ops_msg* MessageOperations() {
  static fi_ops_msg table = [] {
    fi_ops_msg made = RefuseAll(fi_ops_msg{});
    made.recv = Recv;
    made.send = Send;
    made.senddata = SendData;
    return made;
  }();
  return &table;
}

fi_ops_rma* RmaOperations() {
  static fi_ops_rma table = [] {
    fi_ops_rma made = RefuseAll(fi_ops_rma{});
    made.read = Read;
    made.writemsg = WriteMsg;
    made.writedata = WriteData;
    return made;
  }();
  return &table;
}

}  // namespace faulty_libfabric
