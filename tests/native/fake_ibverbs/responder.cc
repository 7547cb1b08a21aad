// What arrives from the peer's requester.
//
// An acknowledgement says that the responder has the message, not that its bytes are in memory: the
// InfiniBand Architecture Specification (volume 1, Transaction Ordering) lets an application depend
// on them only after the completion of a later receive on the same queue pair, or an operation
// behind them there. So NCCL sends an immediate on each queue pair of a message (ncclIbMultiSend in
// net_ib), and reads its own memory before a GPU looks at it (ncclIbIflush).

#include <algorithm>
#include <cstring>

#include "engine.h"

namespace fake_ibverbs {
namespace {

bool IsRead(const Frame& request) { return request.opcode == IBV_WR_RDMA_READ; }

bool IsSend(const Frame& request) {
  return request.opcode == IBV_WR_SEND || request.opcode == IBV_WR_SEND_WITH_IMM;
}

bool HasImmediate(const Frame& request) {
  return request.opcode == IBV_WR_SEND_WITH_IMM || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

bool ConsumesReceive(const Frame& request) { return IsSend(request) || HasImmediate(request); }

uint64_t MtuBytes(uint32_t mtu) { return uint64_t{128} << mtu; }

void Reply(Fake* fake, uint64_t link, const Frame& to, FrameType type, uint32_t status) {
  Frame frame;
  frame.type = type;
  frame.source_qp = to.target_qp;
  frame.target_qp = to.source_qp;
  frame.psn = to.psn;
  frame.attempt = to.attempt;
  frame.status = status;
  // Without the link the requester knows by itself.
  fake->wire.Send(link, frame, nullptr);
}

Qp* TargetOf(const Fake& fake, const Frame& frame) {
  const auto it = fake.qps.find(frame.target_qp);
  if (it == fake.qps.end()) return nullptr;
  Qp* qp = it->second;
  const bool receiving = qp->now == IBV_QPS_RTR || qp->now == IBV_QPS_RTS;
  return receiving && qp->attr.dest_qp_num == frame.source_qp && PathUp(fake, *qp) ? qp : nullptr;
}

bool SameGid(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

// The lid that the routers of InfiniBand give a GID, as ncclIbExtractFlid() of NCCL reads it: 10
// bits of a site-local prefix, 22 zeros, 16 bits of it, 16 of the subnet's number.
uint32_t RoutedLid(const ibv_gid& gid) { return uint32_t{gid.raw[4]} << 8 | gid.raw[5]; }

bool OneSubnet(const ibv_gid& a, const ibv_gid& b) {
  return std::memcmp(a.raw, b.raw, 4) == 0 && std::memcmp(a.raw + 6, b.raw + 6, 2) == 0;
}

// Of InfiniBand. Without a GRH, packets do not leave their subnet.
bool LidsMatch(const PortConfig& port, const GidEntry* entry, const ibv_ah_attr& address,
               const Frame& frame) {
  const ibv_gid own = entry != nullptr    ? entry->gid
                      : port.gids.empty() ? frame.source_gid
                                          : port.gids[0].gid;
  if (OneSubnet(own, frame.source_gid)) {
    return frame.target_lid == port.lid && frame.source_lid == address.dlid;
  }
  return frame.global != 0 && frame.target_lid == RoutedLid(own) &&
         address.dlid == RoutedLid(frame.source_gid);
}

// Whether the packet is for this queue pair's port, and from the port it is connected to.
bool AddressesMatch(const Fake& fake, const Qp& qp, const Frame& frame) {
  const PortConfig& port = *fake.PortOf(qp.context, qp.attr.port_num);
  if (frame.network != port.network) return false;
  const uint32_t own_pkey = port.pkeys[qp.attr.pkey_index];
  if (((frame.pkey ^ own_pkey) & 0x7fff) != 0) return false;
  // Two limited members of a partition do not talk to each other.
  if (((frame.pkey | own_pkey) & 0x8000) == 0) return false;
  const ibv_ah_attr& address = qp.attr.ah_attr;
  if (port.grh_required && frame.global == 0) return false;
  if (port.link_layer == IBV_LINK_LAYER_INFINIBAND &&
      !LidsMatch(port, address.is_global != 0 ? OwnGid(fake, qp) : nullptr, address, frame)) {
    return false;
  }
  if ((frame.global != 0) != (address.is_global != 0)) return false;
  if (frame.global == 0) return true;
  const GidEntry& own = *OwnGid(fake, qp);
  return frame.gid_type == static_cast<uint32_t>(own.type) && SameGid(frame.target_gid, own.gid) &&
         SameGid(frame.source_gid, address.grh.dgid);
}

// Tells the requester that its request is at fault, which ends both queue pairs.
void Refuse(Fake* fake, Qp* qp, ibv_wc_status status) {
  const Responder responder = qp->responder;
  BreakQp(qp);
  if (status == IBV_WC_REM_ACCESS_ERR) fake->RaiseQpEvent(qp, IBV_EVENT_QP_ACCESS_ERR);
  if (status == IBV_WC_REM_INV_REQ_ERR) fake->RaiseQpEvent(qp, IBV_EVENT_QP_REQ_ERR);
  Reply(fake, responder.link, responder.request, FrameType::kAck, status);
}

ibv_wc_status CheckRequest(const Fake& fake, const Qp& qp, const Frame& frame) {
  if (frame.status != IBV_WC_SUCCESS) return static_cast<ibv_wc_status>(frame.status);
  if (frame.path_mtu != static_cast<uint32_t>(qp.attr.path_mtu) &&
      frame.length > std::min(MtuBytes(frame.path_mtu), MtuBytes(qp.attr.path_mtu))) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  if (IsSend(frame)) return IBV_WC_SUCCESS;
  const unsigned int access = IsRead(frame) ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if ((qp.attr.qp_access_flags & access) == 0 ||
      (IsRead(frame) && qp.attr.max_dest_rd_atomic == 0)) {
    return IBV_WC_REM_INV_REQ_ERR;
  }
  // The key of an empty message is not looked at.
  if (frame.length != 0 && FindMemory(fake.by_rkey, frame.rkey, qp.pd, frame.remote_addr,
                                      frame.length, access) == nullptr) {
    return IBV_WC_REM_ACCESS_ERR;
  }
  return IBV_WC_SUCCESS;
}

void AdvancePsn(Qp* qp) {
  qp->responder.running = false;
  qp->responder.any = true;
  if (!qp->responder.repeated) qp->responder.psn = (qp->responder.psn + 1) & kPsnMask;
}

void FinishMessage(Fake* fake, Qp* qp) {
  const Responder responder = qp->responder;
  AdvancePsn(qp);
  if (ConsumesReceive(responder.request)) CompleteReceive(fake, qp, IBV_WC_SUCCESS);
  Reply(fake, responder.link, responder.request, FrameType::kAck, IBV_WC_SUCCESS);
}

// True if the message may go on with the receive that it takes.
bool ReceiveReady(Fake* fake, Qp* qp, uint64_t link, const Frame& frame) {
  if (qp->receives.empty()) {
    ++fake->stats.rnr_naks_sent;
    qp->responder.running = false;
    Reply(fake, link, frame, FrameType::kAck, kReceiverNotReady);
    return false;
  }
  if (IsSend(frame) && frame.length > qp->receives.front().length) {
    CompleteReceive(fake, qp, IBV_WC_LOC_LEN_ERR);
    Refuse(fake, qp, IBV_WC_REM_INV_REQ_ERR);
    return false;
  }
  return true;
}

void Place(const Fake& fake, Qp* qp, char* to, const char* bytes, uint64_t length) {
  const PortConfig* port = fake.PortOf(qp->context, qp->attr.port_num);
  const int64_t late = port == nullptr ? 0 : port->place_late_us;
  if (late == 0 && qp->placements.empty()) {
    std::memmove(to, bytes, length);
  } else {
    const uint64_t least = port == nullptr ? 0 : port->overtaken;
    const bool overtaken = least != 0 && qp->responder.request.length >= least;
    qp->placements.push_back(
        {Now() + late * kMicrosecond, to, std::string(bytes, length), overtaken});
  }
}

}  // namespace

Nanos PlaceDue(Qp* qp, Nanos now) {
  while (!qp->placements.empty() && qp->placements.front().due <= now) {
    const Placement& first = qp->placements.front();
    std::memcpy(first.to, first.bytes.data(), first.bytes.size());
    qp->placements.pop_front();
  }
  return qp->placements.empty() ? kNever : qp->placements.front().due;
}

void PlaceAll(Qp* qp) { PlaceDue(qp, kNever); }

void PlaceBeforeReceive(Qp* qp) {
  std::deque<Placement> left;
  for (Placement& each : qp->placements) {
    if (each.overtaken) {
      left.push_back(std::move(each));
    } else {
      std::memcpy(each.to, each.bytes.data(), each.bytes.size());
    }
  }
  qp->placements.swap(left);
}

void CompleteReceive(Fake* fake, Qp* qp, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS) PlaceBeforeReceive(qp);
  const ReceiveRequest receive = std::move(qp->receives.front());
  qp->receives.pop_front();
  const Frame& request = qp->responder.request;
  Completion completion;
  completion.index = receive.index;
  completion.wc.wr_id = receive.wr_id;
  completion.wc.status = status;
  completion.wc.qp_num = qp->qp_num;
  bool solicited = false;
  if (status == IBV_WC_SUCCESS) {
    completion.wc.opcode = IsSend(request) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    completion.wc.byte_len = static_cast<uint32_t>(request.length);
    if (HasImmediate(request)) {
      completion.wc.imm_data = request.imm;
      completion.wc.wc_flags = IBV_WC_WITH_IMM;
    }
    solicited = request.solicited != 0;
  }
  Complete(fake, qp->recv_cq, completion, solicited);
}

void OnRequest(Fake* fake, uint64_t link, const Frame& frame) {
  Qp* qp = TargetOf(*fake, frame);
  if (qp == nullptr || !AddressesMatch(*fake, *qp, frame)) {
    return Reply(fake, link, frame, FrameType::kDropped, 0);
  }
  Responder& responder = qp->responder;
  const uint32_t behind = (responder.psn - frame.psn) & kPsnMask;
  const bool repeated = responder.any && behind > 0 && behind <= kMaxAhead + 1;
  if (!repeated && frame.psn != responder.psn) {
    return Reply(fake, link, frame, FrameType::kDropped, 0);
  }
  if (repeated && !IsRead(frame)) {
    // Done already; only the answer was lost.
    return Reply(fake, link, frame, FrameType::kAck, IBV_WC_SUCCESS);
  }
  if (qp->now == IBV_QPS_RTR && !qp->established) {
    qp->established = true;
    fake->RaiseQpEvent(qp, IBV_EVENT_COMM_EST);
  }
  responder.running = true;
  fake->unsettled = true;
  responder.repeated = repeated;
  responder.link = link;
  responder.moved = 0;
  responder.request = frame;
  const ibv_wc_status status = CheckRequest(*fake, *qp, frame);
  if (IsRead(frame)) PlaceAll(qp);
  if (status != IBV_WC_SUCCESS) {
    if (status == IBV_WC_REM_OP_ERR && ConsumesReceive(frame) && !qp->receives.empty()) {
      CompleteReceive(fake, qp, IBV_WC_LOC_QP_OP_ERR);
    }
    return Refuse(fake, qp, status);
  }
  if (ConsumesReceive(frame) && !ReceiveReady(fake, qp, link, frame)) return;
  if (frame.length == 0 && !IsRead(frame)) FinishMessage(fake, qp);
}

void OnData(Fake* fake, uint64_t link, const Frame& frame, const char* payload) {
  Qp* qp = TargetOf(*fake, frame);
  if (qp == nullptr) return Reply(fake, link, frame, FrameType::kDropped, 0);
  Responder& responder = qp->responder;
  const Frame& request = responder.request;
  // The rest of an attempt that has been answered already.
  if (!responder.running || request.psn != frame.psn || request.attempt != frame.attempt ||
      frame.offset != responder.moved || frame.payload > request.length - responder.moved) {
    return;
  }
  if (IsSend(request)) {
    if (!Scatter(*fake, qp->pd, qp->receives.front().pieces, responder.moved, payload,
                 frame.payload)) {
      CompleteReceive(fake, qp, IBV_WC_LOC_PROT_ERR);
      return Refuse(fake, qp, IBV_WC_REM_OP_ERR);
    }
  } else {
    char* to = FindMemory(fake->by_rkey, request.rkey, qp->pd, request.remote_addr + frame.offset,
                          frame.payload, IBV_ACCESS_REMOTE_WRITE);
    if (to == nullptr) return Refuse(fake, qp, IBV_WC_REM_ACCESS_ERR);
    Place(*fake, qp, to, payload, frame.payload);
  }
  responder.moved += frame.payload;
  if (responder.moved == request.length) FinishMessage(fake, qp);
}

// Sends the bytes that a read asked for, and flushes receives.
Nanos StepResponder(Fake* fake, Qp* qp) {
  if (ContextOf(qp->context)->fatal) return kNever;
  if (qp->now == IBV_QPS_ERR) {
    while (!qp->receives.empty()) CompleteReceive(fake, qp, IBV_WC_WR_FLUSH_ERR);
    return kNever;
  }
  Responder& responder = qp->responder;
  if (!responder.running || !IsRead(responder.request)) return kNever;
  if (!fake->wire.HasRoom(responder.link)) return kNever;
  const Frame& request = responder.request;
  if (!PathUp(*fake, *qp)) {
    responder.running = false;
    Reply(fake, responder.link, request, FrameType::kDropped, 0);
    return kNever;
  }
  if (const Nanos free = FreeAt(*fake, *qp); free > Now()) return free;
  const uint64_t length = std::min<uint64_t>(request.length - responder.moved, kMaxPayload);
  const char* from = nullptr;
  if (length != 0) {
    from = FindMemory(fake->by_rkey, request.rkey, qp->pd, request.remote_addr + responder.moved,
                      length, IBV_ACCESS_REMOTE_READ);
    if (from == nullptr) {
      Refuse(fake, qp, IBV_WC_REM_ACCESS_ERR);
      return 0;
    }
  }
  Frame frame;
  frame.type = FrameType::kReadData;
  frame.source_qp = qp->qp_num;
  frame.target_qp = request.source_qp;
  frame.psn = request.psn;
  frame.attempt = request.attempt;
  frame.offset = responder.moved;
  frame.payload = static_cast<uint32_t>(length);
  responder.moved += length;
  UseBandwidth(fake, *qp, length);
  const uint64_t link = responder.link;
  if (responder.moved == request.length) AdvancePsn(qp);
  if (!fake->wire.Send(link, frame, from)) responder.running = false;
  return 0;
}

}  // namespace fake_ibverbs
