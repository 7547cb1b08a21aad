// Completion channels and completion queues.

#include <algorithm>
#include <cerrno>

#include "engine.h"
#include "fake.h"
#include "wait.h"

namespace fake_ibverbs {
namespace {

void Notify(Fake* fake, Cq* cq) {
  cq->armed = Armed::kNo;
  if (cq->channel == nullptr) return;
  auto* channel = static_cast<Channel*>(cq->channel);
  channel->events.push_back(cq);
  channel->ready.Set(true);
  ++fake->stats.completion_events;
}

// Queue entries that the application has heard of are free for new requests.
void Reclaim(const Fake& fake, const Completion& completion) {
  const auto it = fake.qps.find(completion.wc.qp_num);
  if (it == fake.qps.end()) return;
  uint64_t* reclaimed =
      completion.of_send ? &it->second->sends_reclaimed : &it->second->receives_reclaimed;
  *reclaimed = std::max(*reclaimed, completion.index + 1);
}

}  // namespace

void BreakCq(Fake* fake, Cq* cq) {
  if (cq->dead) return;
  cq->dead = true;
  ibv_async_event event = {};
  event.element.cq = cq;
  event.event_type = IBV_EVENT_CQ_ERR;
  fake->RaiseAsync(ContextOf(cq->context), event);
  for (const auto& [number, qp] : fake->qps) {
    if ((qp->send_cq != cq && qp->recv_cq != cq) || qp->now == IBV_QPS_ERR) continue;
    BreakQp(qp);
    fake->RaiseQpEvent(qp, IBV_EVENT_QP_FATAL);
  }
}

void Complete(Fake* fake, ibv_cq* shown, const Completion& completion, bool solicited) {
  auto* cq = static_cast<Cq*>(shown);
  if (cq->dead) return;
  if (cq->entries.size() >= static_cast<size_t>(cq->cqe)) {
    // A card that has nowhere to put a completion gives up the queue.
    ++fake->stats.cq_overruns;
    return BreakCq(fake, cq);
  }
  cq->entries.push_back(completion);
  FakeIbverbsStats& stats = fake->stats;
  ++stats.completions;
  stats.highest_cq_fill = std::max<uint64_t>(stats.highest_cq_fill, cq->entries.size());
  const bool failed = completion.wc.status != IBV_WC_SUCCESS;
  if (failed) {
    ++stats.failed_completions;
    // Not valid in a failed completion, and not even telling sends from receives.
    cq->entries.back().wc.opcode = static_cast<ibv_wc_opcode>(0x7f);
    cq->entries.back().wc.byte_len = 0xdddddddd;
  }
  if (cq->armed == Armed::kAll || (cq->armed == Armed::kSolicited && (solicited || failed))) {
    Notify(fake, cq);
  }
}

void DropCompletions(ibv_cq* shown, uint32_t qp_num) {
  auto* cq = static_cast<Cq*>(shown);
  cq->entries.erase(
      std::remove_if(cq->entries.begin(), cq->entries.end(),
                     [&](const Completion& completion) { return completion.wc.qp_num == qp_num; }),
      cq->entries.end());
}

int PollCq(ibv_cq* shown, int count, ibv_wc* wc) {
  Call call("poll_cq", shown->context, Call::Kind::kEnd);
  auto* cq = static_cast<Cq*>(shown);
  if (call.error != 0 || cq->dead) return -1;
  int polled = 0;
  for (; polled < count && !cq->entries.empty(); ++polled) {
    wc[polled] = cq->entries.front().wc;
    Reclaim(call.fake, cq->entries.front());
    cq->entries.pop_front();
  }
  return polled;
}

int RequestNotify(ibv_cq* shown, int solicited_only) {
  Call call("req_notify_cq", shown->context);
  if (call.error != 0) return call.error;
  auto* cq = static_cast<Cq*>(shown);
  if (solicited_only == 0) {
    cq->armed = Armed::kAll;
  } else if (cq->armed == Armed::kNo) {
    cq->armed = Armed::kSolicited;
  }
  return 0;
}

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  Call call("create_comp_channel", context);
  if (call.error != 0) return NullWith<ibv_comp_channel>(call.error);
  auto* channel = new Channel();
  if (!channel->ready.Open()) {
    delete channel;
    return NullWith<ibv_comp_channel>(EMFILE);
  }
  channel->context = context;
  channel->fd = channel->ready.fd;
  ++ContextOf(context)->users;
  ++call.fake.stats.channels;
  return channel;
}

int ibv_destroy_comp_channel(ibv_comp_channel* shown) {
  Call call("destroy_comp_channel", shown->context, Call::Kind::kEnd);
  if (call.error != 0) return call.error;
  auto* channel = static_cast<Channel*>(shown);
  if (channel->refcnt != 0) return EBUSY;
  channel->ready.Close();
  --ContextOf(channel->context)->users;
  --call.fake.stats.channels;
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                      int comp_vector) {
  Call call("create_cq", context);
  if (call.error != 0) return NullWith<ibv_cq>(call.error);
  if (cqe < 1 || cqe > call.fake.ConfigOf(context).max_cqe || comp_vector < 0 ||
      comp_vector >= context->num_comp_vectors ||
      (channel != nullptr && channel->context != context)) {
    return NullWith<ibv_cq>(EINVAL);
  }
  auto* cq = new Cq();
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = cqe;
  if (channel != nullptr) ++channel->refcnt;
  ++ContextOf(context)->users;
  ++call.fake.stats.cqs;
  call.fake.cqs.push_back(cq);
  call.fake.stats.last_vector = static_cast<uint64_t>(comp_vector);
  return cq;
}

int ibv_resize_cq(ibv_cq* shown, int cqe) {
  Call call("resize_cq", shown->context);
  if (call.error != 0) return call.error;
  auto* cq = static_cast<Cq*>(shown);
  if (cqe < 1 || cqe > call.fake.ConfigOf(cq->context).max_cqe ||
      static_cast<size_t>(cqe) < cq->entries.size()) {
    return EINVAL;
  }
  cq->cqe = cqe;
  return 0;
}

int ibv_destroy_cq(ibv_cq* shown) {
  Call call("destroy_cq", shown->context, Call::Kind::kEnd);
  if (call.error != 0) return call.error;
  auto* cq = static_cast<Cq*>(shown);
  if (cq->users != 0 || cq->unacked_completion_events != 0 || cq->unacked_async_events != 0) {
    return EBUSY;
  }
  if (auto* channel = static_cast<Channel*>(cq->channel); channel != nullptr) {
    std::deque<Cq*>& events = channel->events;
    events.erase(std::remove(events.begin(), events.end(), cq), events.end());
    channel->ready.Set(!events.empty());
    --channel->refcnt;
  }
  Context* context = ContextOf(cq->context);
  auto& events = context->events;
  events.erase(std::remove_if(events.begin(), events.end(),
                              [&](const ibv_async_event& event) {
                                return event.event_type == IBV_EVENT_CQ_ERR &&
                                       event.element.cq == cq;
                              }),
               events.end());
  context->ready.Set(!events.empty());
  --context->users;
  --call.fake.stats.cqs;
  call.fake.cqs.erase(std::find(call.fake.cqs.begin(), call.fake.cqs.end(), cq));
  delete cq;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* shown, ibv_cq** cq, void** cq_context) {
  for (;;) {
    int fd = -1;
    {
      Call call("get_cq_event", shown->context, Call::Kind::kEnd);
      if (call.error != 0) {
        errno = call.error;
        return -1;
      }
      auto* channel = static_cast<Channel*>(shown);
      if (!channel->events.empty()) {
        Cq* first = channel->events.front();
        channel->events.pop_front();
        channel->ready.Set(!channel->events.empty());
        ++first->unacked_completion_events;
        *cq = first;
        *cq_context = first->cq_context;
        return 0;
      }
      fd = channel->ready.fd;
    }
    if (!WaitReadable(fd)) return -1;
  }
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  Call call("ack_cq_events");
  static_cast<Cq*>(cq)->unacked_completion_events -= count;
}

}  // extern "C"

}  // namespace fake_ibverbs
