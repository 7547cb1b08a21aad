// Queue pairs: making, connecting and destroying them.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine.h"
#include "fake.h"

namespace fake_ibverbs {
namespace {

constexpr Nanos kAckTimeout = 100 * kMillisecond;

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

// The kernel's table for reliable connections, without SQD and SQE.
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

bool MaskFits(ibv_qp_state from, ibv_qp_state to, int mask) {
  const int others = mask & ~IBV_QP_STATE;
  if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) return others == 0;
  for (const Transition& step : kTransitions) {
    if (step.from != from || step.to != to) continue;
    return (others & step.required) == step.required &&
           (others & ~(step.required | step.optional)) == 0;
  }
  return false;
}

bool IsZero(const ibv_gid& gid) {
  const ibv_gid zero = {};
  return std::memcmp(gid.raw, zero.raw, sizeof(zero.raw)) == 0;
}

bool IsIpv4(const ibv_gid& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kMapped, sizeof(kMapped)) == 0;
}

bool AddressFits(const PortConfig& port, const ibv_ah_attr& address) {
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  // The kernel refuses it there, in rdma_check_ah_attr() of drivers/infiniband/core/verbs.c.
  if (address.is_global == 0) return !ethernet && !port.grh_required && address.dlid != 0;
  if (address.grh.sgid_index >= port.gids.size() || IsZero(address.grh.dgid)) return false;
  const GidEntry& own = port.gids[address.grh.sgid_index];
  if (!own.present) return false;
  return ethernet ? IsIpv4(own.gid) == IsIpv4(address.grh.dgid) : address.dlid != 0;
}

constexpr unsigned int kQpAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// The attributes after the change. False where one makes no sense on this device.
bool Merge(const Fake& fake, const Qp& qp, const ibv_qp_attr& in, int mask, ibv_qp_attr* out) {
  const DeviceConfig& device = fake.ConfigOf(qp.context);
  const auto has = [&](int bit) { return (mask & bit) != 0; };
  *out = qp.attr;
  if (has(IBV_QP_CUR_STATE) && in.cur_qp_state != qp.now) return false;
  if (has(IBV_QP_PORT)) out->port_num = in.port_num;
  if (has(IBV_QP_PKEY_INDEX)) out->pkey_index = in.pkey_index;
  if (has(IBV_QP_ACCESS_FLAGS)) out->qp_access_flags = in.qp_access_flags;
  if (has(IBV_QP_AV)) out->ah_attr = in.ah_attr;
  if (has(IBV_QP_PATH_MTU)) out->path_mtu = in.path_mtu;
  if (has(IBV_QP_DEST_QPN)) out->dest_qp_num = in.dest_qp_num;
  // Upper bits are cut off, as by cards.
  if (has(IBV_QP_RQ_PSN)) out->rq_psn = in.rq_psn & kPsnMask;
  if (has(IBV_QP_SQ_PSN)) out->sq_psn = in.sq_psn & kPsnMask;
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC)) out->max_dest_rd_atomic = in.max_dest_rd_atomic;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC)) out->max_rd_atomic = in.max_rd_atomic;
  if (has(IBV_QP_MIN_RNR_TIMER)) out->min_rnr_timer = in.min_rnr_timer;
  if (has(IBV_QP_TIMEOUT)) out->timeout = in.timeout;
  if (has(IBV_QP_RETRY_CNT)) out->retry_cnt = in.retry_cnt;
  if (has(IBV_QP_RNR_RETRY)) out->rnr_retry = in.rnr_retry;

  const PortConfig* port = fake.PortOf(qp.context, out->port_num);
  if (port == nullptr || out->pkey_index >= port->pkeys.size()) return false;
  if ((out->qp_access_flags & ~kQpAccess) != 0) return false;
  if (has(IBV_QP_AV) &&
      (out->ah_attr.port_num != out->port_num || !AddressFits(*port, out->ah_attr))) {
    return false;
  }
  if (has(IBV_QP_PATH_MTU) && (out->path_mtu < IBV_MTU_256 || out->path_mtu > port->active_mtu)) {
    return false;
  }
  if (has(IBV_QP_DEST_QPN) && (out->dest_qp_num < 2 || out->dest_qp_num > 0xffffff)) return false;
  return out->max_dest_rd_atomic <= device.max_qp_rd_atom &&
         out->max_rd_atomic <= device.max_qp_rd_atom && out->min_rnr_timer < 32 &&
         out->timeout < 32 && out->retry_cnt < 8 && out->rnr_retry < 8;
}

// Nothing of the queue pair moves any more once it is reset or destroyed.
void ClearQueues(Qp* qp) {
  PlaceAll(qp);
  DropCompletions(qp->send_cq, qp->qp_num);
  DropCompletions(qp->recv_cq, qp->qp_num);
  qp->sends.clear();
  qp->receives.clear();
  qp->sends_posted = qp->sends_reclaimed = 0;
  qp->receives_posted = qp->receives_reclaimed = 0;
  qp->requester.running = false;
  qp->responder.running = false;
}

void Enter(Qp* qp, ibv_qp_state to) {
  const bool again = qp->now == to;
  qp->now = to;
  switch (to) {
    case IBV_QPS_RESET:
      ClearQueues(qp);
      qp->attr = {};
      qp->established = false;
      break;
    case IBV_QPS_RTR:
      qp->responder.psn = qp->attr.rq_psn;
      qp->responder.any = false;
      break;
    case IBV_QPS_RTS:
      if (!again) qp->requester.psn = qp->attr.sq_psn;
      break;
    case IBV_QPS_ERR:
      BreakQp(qp);
      break;
    default:
      break;
  }
}

bool CapsFit(const DeviceConfig& device, const ibv_qp_cap& cap) {
  const auto most = [](int limit) { return static_cast<uint32_t>(limit); };
  return cap.max_send_wr <= most(device.max_qp_wr) && cap.max_recv_wr <= most(device.max_qp_wr) &&
         cap.max_send_sge <= most(device.max_sge) && cap.max_recv_sge <= most(device.max_sge) &&
         cap.max_inline_data <= most(device.max_inline);
}

// Numbers go round before one is used again. 0 if there are none left.
uint32_t NewQpNumber(Fake* fake) {
  for (uint32_t i = 0; i <= kQpIndexMask; ++i) {
    const uint32_t number = (fake->wire.tag() << kTagShift) | (fake->next_qp++ & kQpIndexMask);
    if (fake->qps.count(number) == 0) return number;
  }
  return 0;
}

bool IsEventOf(const ibv_async_event& event, const Qp* qp) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return event.element.qp == qp;
    default:
      return false;
  }
}

// Another thread may be about to acknowledge an event, as a real library expects.
bool IsKept(const Qp* qp, Nanos deadline) {
  const Call call("");
  return call.fake.config.keep_qps || (qp->unacked_async_events != 0 && Now() < deadline);
}

// As with RoCE, while the kernel resolves the peer's address.
void WaitIfHeld() {
  bool waits = false;
  while (true) {
    {
      const Call call("");
      const bool held = call.fake.config.hold_rtr;
      if (held && !waits) ++call.fake.stats.held;
      if (!held && waits) --call.fake.stats.held;
      waits = held;
    }
    if (!waits) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

extern "C" {

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  Call call("create_qp", pd->context);
  if (call.error != 0) return NullWith<ibv_qp>(call.error);
  Fake& fake = call.fake;
  const DeviceConfig& device = fake.ConfigOf(pd->context);
  if (init->qp_type != IBV_QPT_RC || init->srq != nullptr) return NullWith<ibv_qp>(EOPNOTSUPP);
  if (init->send_cq == nullptr || init->recv_cq == nullptr ||
      init->send_cq->context != pd->context || init->recv_cq->context != pd->context ||
      !CapsFit(device, init->cap)) {
    return NullWith<ibv_qp>(EINVAL);
  }
  const uint32_t number = NewQpNumber(&fake);
  if (number == 0 || fake.stats.qps >= static_cast<uint64_t>(device.max_qp)) {
    return NullWith<ibv_qp>(ENOMEM);
  }
  auto* qp = new Qp();
  qp->context = pd->context;
  qp->qp_context = init->qp_context;
  qp->pd = pd;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->qp_num = number;
  qp->state = IBV_QPS_RESET;
  qp->qp_type = IBV_QPT_RC;
  qp->cap = init->cap;
  qp->signal_all = init->sq_sig_all != 0;
  fake.qps[number] = qp;
  ++static_cast<Pd*>(pd)->users;
  ++static_cast<Cq*>(qp->send_cq)->users;
  ++static_cast<Cq*>(qp->recv_cq)->users;
  ++fake.stats.qps;
  return qp;
}

int ibv_modify_qp(ibv_qp* shown, ibv_qp_attr* attr, int mask) {
  const bool to_rtr = (mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RTR;
  if (to_rtr) WaitIfHeld();
  Call call("modify_qp", shown->context);
  if (call.error != 0) return call.error;
  auto* qp = static_cast<Qp*>(shown);
  const int rtr_error = call.fake.ConfigOf(qp->context).rtr_error;
  if (to_rtr && rtr_error != 0) return rtr_error;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr->qp_state : qp->now;
  if (!MaskFits(qp->now, to, mask)) return EINVAL;
  ibv_qp_attr merged = qp->attr;
  if (to != IBV_QPS_ERR && to != IBV_QPS_RESET && !Merge(call.fake, *qp, *attr, mask, &merged)) {
    return EINVAL;
  }
  qp->attr = merged;
  if ((mask & IBV_QP_STATE) != 0) {
    Enter(qp, to);
    qp->state = to;
  }
  call.fake.WakeEngine();
  return 0;
}

int ibv_query_qp(ibv_qp* shown, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  Call call("query_qp", shown->context);
  if (call.error != 0) return call.error;
  auto* qp = static_cast<Qp*>(shown);
  *attr = qp->attr;
  attr->qp_state = attr->cur_qp_state = qp->state = qp->now;
  attr->cap = qp->cap;
  *init = {};
  init->qp_context = qp->qp_context;
  init->send_cq = qp->send_cq;
  init->recv_cq = qp->recv_cq;
  init->cap = qp->cap;
  init->qp_type = qp->qp_type;
  init->sq_sig_all = qp->signal_all ? 1 : 0;
  return 0;
}

int ibv_destroy_qp(ibv_qp* shown) {
  auto* qp = static_cast<Qp*>(shown);
  const Nanos deadline = Now() + kAckTimeout;
  while (IsKept(qp, deadline)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Call call("destroy_qp", shown->context, Call::Kind::kEnd);
  if (call.error != 0) return call.error;
  if (qp->unacked_async_events != 0) return EBUSY;
  ClearQueues(qp);
  Context* context = ContextOf(qp->context);
  auto& events = context->events;
  events.erase(std::remove_if(events.begin(), events.end(),
                              [&](const ibv_async_event& event) { return IsEventOf(event, qp); }),
               events.end());
  context->ready.Set(!events.empty());
  call.fake.qps.erase(qp->qp_num);
  --static_cast<Pd*>(qp->pd)->users;
  --static_cast<Cq*>(qp->send_cq)->users;
  --static_cast<Cq*>(qp->recv_cq)->users;
  --call.fake.stats.qps;
  delete qp;
  return 0;
}

}  // extern "C"

}  // namespace fake_ibverbs
