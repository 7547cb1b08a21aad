// Send work requests, which are answered one after the other.

#include <algorithm>

#include "engine.h"

namespace fake_ibverbs {
namespace {

bool ConsumesReceive(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND ||
         opcode == IBV_WR_SEND_WITH_IMM;
}

bool RefusedByPeer(ibv_wc_status status) {
  return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
         status == IBV_WC_REM_OP_ERR;
}

void StartAgain(Requester* requester) {
  ++requester->attempt;
  requester->request_sent = false;
  requester->moved = 0;
  requester->ahead = 0;
}

// The one that is now the first was sent ahead.
void GoOn(Qp* qp) {
  Requester& requester = qp->requester;
  --requester.ahead;
  requester.running = true;
  requester.receiver_not_ready = 0;
  requester.moved = qp->sends.front().length;
}

ibv_wc_opcode CompletionOpcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

void Count(FakeIbverbsStats* stats, const SendRequest& request) {
  switch (request.opcode) {
    case IBV_WR_RDMA_READ:
      ++stats->reads;
      break;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      ++stats->sends;
      break;
    default:
      if (request.opcode == IBV_WR_RDMA_WRITE) ++stats->writes;
      break;
  }
}

// The first request is over. Any end but a good one breaks the queue pair.
void Finish(Fake* fake, Qp* qp, ibv_wc_status status) {
  const SendRequest request = std::move(qp->sends.front());
  qp->sends.pop_front();
  qp->requester.running = false;
  // An answer may come after this queue pair had its turn.
  if (!qp->sends.empty()) fake->unsettled = true;
  if (status == IBV_WC_SUCCESS) {
    qp->requester.psn = (qp->requester.psn + 1) & kPsnMask;
    if (qp->requester.ahead > 0) GoOn(qp);
    Count(&fake->stats, request);
    if (!request.signaled) return;
  } else if (qp->now != IBV_QPS_ERR) {
    BreakQp(qp);
  }
  Completion completion;
  completion.of_send = true;
  completion.index = request.index;
  completion.wc.wr_id = request.wr_id;
  completion.wc.status = status;
  completion.wc.opcode = CompletionOpcode(request.opcode);
  completion.wc.vendor_err = status == request.forced ? request.vendor_err : 0;
  completion.wc.byte_len = static_cast<uint32_t>(request.length);
  completion.wc.qp_num = qp->qp_num;
  Complete(fake, qp->send_cq, completion, false);
}

bool PiecesAllowed(const Fake& fake, const Qp& qp, const SendRequest& request) {
  const unsigned int access = request.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
  return std::all_of(request.pieces.begin(), request.pieces.end(), [&](const ibv_sge& piece) {
    return piece.length == 0 ||
           FindMemory(fake.by_lkey, piece.lkey, qp.pd, piece.addr, piece.length, access) != nullptr;
  });
}

// What a card finds wrong before it sends anything.
ibv_wc_status CheckLocally(const Fake& fake, const Qp& qp, const SendRequest& request) {
  const PortConfig* port = fake.PortOf(qp.context, qp.attr.port_num);
  if (request.forced != IBV_WC_SUCCESS && !RefusedByPeer(request.forced)) return request.forced;
  if (port != nullptr && request.length > port->max_msg_sz) return IBV_WC_LOC_LEN_ERR;
  if (request.opcode == IBV_WR_RDMA_READ && qp.attr.max_rd_atomic == 0) {
    return IBV_WC_LOC_QP_OP_ERR;
  }
  return PiecesAllowed(fake, qp, request) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}

Frame RequestFrame(const Fake& fake, const Qp& qp, const SendRequest& request) {
  const PortConfig& port = *fake.PortOf(qp.context, qp.attr.port_num);
  const ibv_ah_attr& address = qp.attr.ah_attr;
  Frame frame;
  frame.status = request.forced;
  frame.remote_addr = request.remote_addr;
  frame.length = request.length;
  frame.opcode = request.opcode;
  frame.imm = request.imm;
  frame.rkey = request.rkey;
  frame.solicited = request.solicited && ConsumesReceive(request.opcode) ? 1 : 0;
  frame.path_mtu = qp.attr.path_mtu;
  frame.pkey = port.pkeys[qp.attr.pkey_index];
  frame.source_lid = port.lid;
  frame.network = static_cast<uint32_t>(port.network);
  frame.target_lid = address.dlid;
  if (!port.gids.empty()) frame.source_gid = port.gids[0].gid;
  if (address.is_global != 0) {
    const GidEntry& own = *OwnGid(fake, qp);
    frame.global = 1;
    frame.gid_type = own.type;
    frame.source_gid = own.gid;
    frame.target_gid = address.grh.dgid;
  }
  return frame;
}

// For the request with this index.
void Address(const Qp& qp, FrameType type, uint32_t index, Frame* frame) {
  frame->type = type;
  frame->source_qp = qp.qp_num;
  frame->target_qp = qp.attr.dest_qp_num;
  frame->psn = (qp.requester.psn + index) & kPsnMask;
  frame->attempt = qp.requester.attempt;
}

// Over the local link, all of it may have happened by the time this returns.
void SendRequestFrame(Fake* fake, Qp* qp) {
  Requester& requester = qp->requester;
  requester.link = fake->wire.LinkTo(qp->attr.dest_qp_num);
  if (requester.link == Wire::kNoLink) return Lose(*fake, qp, Now());
  Frame frame = RequestFrame(*fake, *qp, qp->sends.front());
  Address(*qp, FrameType::kRequest, 0, &frame);
  requester.request_sent = true;
  if (!fake->wire.Send(requester.link, frame, nullptr)) Lose(*fake, qp, Now());
}

// The bytes from `offset` on, or null. `length` becomes that of the piece that they lie in.
const char* BytesOf(const Fake& fake, const Qp& qp, const SendRequest& request, uint64_t offset,
                    uint64_t* length) {
  if (request.is_inline) return request.inline_data.data() + offset;
  const Run run = RunAt(request.pieces, offset, *length);
  *length = run.length;
  return FindMemory(fake.by_lkey, run.lkey, qp.pd, run.address, run.length, 0);
}

void SendData(Fake* fake, Qp* qp) {
  Requester& requester = qp->requester;
  const SendRequest& request = qp->sends.front();
  uint64_t length = std::min<uint64_t>(request.length - requester.moved, kMaxPayload);
  const char* from = BytesOf(*fake, *qp, request, requester.moved, &length);
  if (from == nullptr) return Finish(fake, qp, IBV_WC_LOC_PROT_ERR);
  Frame frame;
  Address(*qp, FrameType::kData, 0, &frame);
  frame.offset = requester.moved;
  frame.payload = static_cast<uint32_t>(length);
  requester.moved += length;
  UseBandwidth(fake, *qp, length);
  if (!fake->wire.Send(requester.link, frame, from)) Lose(*fake, qp, Now());
}

// Sends the next request before those in front of it are answered, as a card does. Returns false if
// it waits for them: it needs more than one frame, or is not a write or send, or will fail.
bool SendAhead(Fake* fake, Qp* qp) {
  Requester& requester = qp->requester;
  const uint32_t index = requester.ahead + 1;
  if (fake->config.delay_us > 0 || index > kMaxAhead || index >= qp->sends.size()) return false;
  if (requester.link == Wire::kLocalLink || !fake->wire.HasRoom(requester.link)) return false;
  if (FreeAt(*fake, *qp) > Now()) return false;
  const SendRequest& request = qp->sends[index];
  if (request.opcode == IBV_WR_RDMA_READ || request.forced != IBV_WC_SUCCESS ||
      request.length > kMaxPayload || CheckLocally(*fake, *qp, request) != IBV_WC_SUCCESS) {
    return false;
  }
  uint64_t length = request.length;
  const char* from = length == 0 ? nullptr : BytesOf(*fake, *qp, request, 0, &length);
  if (length != request.length) return false;
  Frame frame = RequestFrame(*fake, *qp, request);
  Address(*qp, FrameType::kRequest, index, &frame);
  bool sent = fake->wire.Send(requester.link, frame, nullptr);
  if (length != 0) {
    Frame data;
    Address(*qp, FrameType::kData, index, &data);
    data.payload = static_cast<uint32_t>(length);
    UseBandwidth(fake, *qp, length);
    sent = sent && fake->wire.Send(requester.link, data, from);
  }
  ++requester.ahead;
  if (!sent) Lose(*fake, qp, Now());
  return true;
}

// The queue pair whose first request the frame answers, or null.
Qp* AnsweredBy(const Fake& fake, const Frame& frame) {
  const auto it = fake.qps.find(frame.target_qp);
  if (it == fake.qps.end()) return nullptr;
  Qp* qp = it->second;
  const Requester& requester = qp->requester;
  const bool current = requester.running && requester.request_sent &&
                       requester.attempt == frame.attempt && requester.psn == frame.psn &&
                       qp->attr.dest_qp_num == frame.source_qp;
  return current ? qp : nullptr;
}

// The same, for answers that a broken path would have swallowed.
Qp* ReachedBy(const Fake& fake, const Frame& frame) {
  Qp* qp = AnsweredBy(fake, frame);
  if (qp == nullptr) return nullptr;
  if (PathUp(fake, *qp)) {
    qp->requester.lost_since = 0;
    return qp;
  }
  Lose(fake, qp, Now());
  return nullptr;
}

// The specification's transport timer is 4.096 us * 2^timeout; 0 is no limit.
Nanos RetryTime(const Fake& fake, const Qp& qp) {
  if (fake.config.retry_ms != 0) return fake.config.retry_ms * kMillisecond;
  return qp.attr.timeout == 0 ? kNever : (Nanos{4096} << qp.attr.timeout) * (qp.attr.retry_cnt + 1);
}

Nanos RetryInterval(const Fake& fake, const Qp& qp) {
  return std::clamp(RetryTime(fake, qp) / 8, kMillisecond, 10 * kMillisecond);
}

// While this thread, and the peer with it, did not run, there were no retries.
bool RetriesExceeded(const Fake& fake, const Qp& qp, Nanos now) {
  const Requester& requester = qp.requester;
  return requester.lost_since != 0 && now - requester.lost_since >= RetryTime(fake, qp) &&
         requester.lost >= RetryTime(fake, qp) / RetryInterval(fake, qp);
}

}  // namespace

void Lose(const Fake& fake, Qp* qp, Nanos now) {
  Requester& requester = qp->requester;
  if (requester.lost_since == 0) {
    requester.lost_since = now;
    requester.lost = 0;
  }
  ++requester.lost;
  requester.not_before = now + RetryInterval(fake, *qp);
  StartAgain(&requester);
}

Nanos StepRequester(Fake* fake, Qp* qp, Nanos now) {
  if (ContextOf(qp->context)->fatal || qp->sends.empty()) return kNever;
  if (qp->now == IBV_QPS_ERR) {
    while (!qp->sends.empty()) Finish(fake, qp, IBV_WC_WR_FLUSH_ERR);
    return kNever;
  }
  if (qp->now != IBV_QPS_RTS) return kNever;
  Requester& requester = qp->requester;
  if (!requester.running) {
    requester.running = true;
    requester.checked = false;
    requester.receiver_not_ready = 0;
    requester.lost_since = 0;
    requester.not_before = now;
    if (fake->config.delay_us > 0) {
      const auto limit = static_cast<uint64_t>(fake->config.delay_us * kMicrosecond);
      requester.not_before += static_cast<Nanos>(fake->random() % (limit + 1));
    }
    StartAgain(&requester);
  }
  if (now < requester.not_before) return requester.not_before;
  if (!requester.checked) {
    requester.checked = true;
    const ibv_wc_status status = CheckLocally(*fake, *qp, qp->sends.front());
    if (status != IBV_WC_SUCCESS) {
      Finish(fake, qp, status);
      return 0;
    }
  }
  const SendRequest& request = qp->sends.front();
  if (RetriesExceeded(*fake, *qp, now)) {
    Finish(fake, qp, IBV_WC_RETRY_EXC_ERR);
    return 0;
  }
  if (!PathUp(*fake, *qp)) {
    Lose(*fake, qp, now);
    return requester.not_before;
  }
  if (!requester.request_sent) {
    SendRequestFrame(fake, qp);
    return 0;
  }
  if (request.opcode == IBV_WR_RDMA_READ) return kNever;
  if (requester.moved == request.length) return SendAhead(fake, qp) ? 0 : kNever;
  // With room again, the engine comes back by itself.
  if (!fake->wire.HasRoom(requester.link)) return kNever;
  if (const Nanos free = FreeAt(*fake, *qp); free > now) return free;
  SendData(fake, qp);
  return 0;
}

void OnReadData(Fake* fake, const Frame& frame, const char* payload) {
  Qp* qp = ReachedBy(*fake, frame);
  if (qp == nullptr) return;
  Requester& requester = qp->requester;
  const SendRequest& request = qp->sends.front();
  if (request.opcode != IBV_WR_RDMA_READ || frame.offset != requester.moved ||
      frame.payload > request.length - requester.moved) {
    return;
  }
  if (!Scatter(*fake, qp->pd, request.pieces, requester.moved, payload, frame.payload)) {
    return Finish(fake, qp, IBV_WC_LOC_PROT_ERR);
  }
  requester.moved += frame.payload;
  if (requester.moved == request.length) Finish(fake, qp, IBV_WC_SUCCESS);
}

void OnAck(Fake* fake, const Frame& frame) {
  Qp* qp = ReachedBy(*fake, frame);
  if (qp == nullptr) return;
  if (frame.status != kReceiverNotReady) {
    return Finish(fake, qp, static_cast<ibv_wc_status>(frame.status));
  }
  ++fake->stats.rnr_naks_received;
  Requester& requester = qp->requester;
  const int limit = qp->attr.rnr_retry;
  if (limit != 7 && requester.receiver_not_ready++ >= limit) {
    return Finish(fake, qp, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  requester.not_before = Now() + 500 * kMicrosecond;
  StartAgain(&requester);
}

void OnDropped(Fake* fake, const Frame& frame) {
  Qp* qp = AnsweredBy(*fake, frame);
  if (qp != nullptr) Lose(*fake, qp, Now());
}

}  // namespace fake_ibverbs
