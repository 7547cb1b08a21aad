// Posting work requests.

#include <cerrno>

#include "engine.h"
#include "fake.h"

namespace fake_ibverbs {
namespace {

bool KnownOpcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return true;
    default:
      return false;
  }
}

int TakeSend(Fake* fake, Qp* qp, const ibv_send_wr& wr) {
  if (qp->sends_posted - qp->sends_reclaimed >= qp->cap.max_send_wr) return ENOMEM;
  if (!KnownOpcode(wr.opcode) || wr.num_sge < 0 ||
      static_cast<uint32_t>(wr.num_sge) > qp->cap.max_send_sge) {
    return EINVAL;
  }
  SendRequest request;
  request.wr_id = wr.wr_id;
  request.index = qp->sends_posted;
  request.opcode = wr.opcode;
  request.signaled = qp->signal_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  request.solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  request.is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  request.imm = wr.imm_data;
  request.remote_addr = wr.wr.rdma.remote_addr;
  request.rkey = wr.wr.rdma.rkey;
  for (int i = 0; i < wr.num_sge; ++i) request.length += wr.sg_list[i].length;
  if (request.is_inline) {
    if (wr.opcode == IBV_WR_RDMA_READ || request.length > qp->cap.max_inline_data) return EINVAL;
    for (int i = 0; i < wr.num_sge; ++i) {
      request.inline_data.append(
          reinterpret_cast<const char*>(static_cast<uintptr_t>(wr.sg_list[i].addr)),
          wr.sg_list[i].length);
    }
  } else {
    request.pieces.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  }
  for (auto it = fake->forced.begin(); it != fake->forced.end();) {
    if (--it->countdown == 0) {
      request.forced = it->status;
      request.vendor_err = it->vendor_err;
      it = fake->forced.erase(it);
    } else {
      ++it;
    }
  }
  ++qp->sends_posted;
  qp->sends.push_back(std::move(request));
  return 0;
}

int TakeReceive(Qp* qp, const ibv_recv_wr& wr) {
  if (qp->receives_posted - qp->receives_reclaimed >= qp->cap.max_recv_wr) return ENOMEM;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp->cap.max_recv_sge) return EINVAL;
  ReceiveRequest request;
  request.wr_id = wr.wr_id;
  request.index = qp->receives_posted++;
  for (int i = 0; i < wr.num_sge; ++i) request.length += wr.sg_list[i].length;
  request.pieces.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  qp->receives.push_back(std::move(request));
  return 0;
}

}  // namespace

int PostSend(ibv_qp* shown, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  Call call("post_send", shown->context);
  auto* qp = static_cast<Qp*>(shown);
  int error = call.error;
  if (error == 0 && qp->now != IBV_QPS_RTS && qp->now != IBV_QPS_ERR) error = EINVAL;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = TakeSend(&call.fake, qp, *wr);
    if (error != 0) break;
  }
  if (error != 0) *bad_wr = wr;
  call.fake.WakeEngine();
  return error;
}

int PostReceive(ibv_qp* shown, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  Call call("post_recv", shown->context);
  auto* qp = static_cast<Qp*>(shown);
  int error = call.error;
  if (error == 0 && qp->now == IBV_QPS_RESET) error = EINVAL;
  for (; wr != nullptr && error == 0; wr = wr->next) {
    error = TakeReceive(qp, *wr);
    if (error != 0) break;
  }
  if (error != 0) *bad_wr = wr;
  if (qp->now == IBV_QPS_ERR) call.fake.WakeEngine();
  return error;
}

}  // namespace fake_ibverbs
