// What the device does on the polling thread: completions, calls of channels, probes, sleep, and
// events of the card.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "base/log.h"
#include "fabric/verbs/device.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr Nanos kDescriptorInterval = 100 * kMillisecond;  // for asynchronous events while busy
constexpr Nanos kProbeInterval = 100 * kMillisecond;
constexpr int kBatchesPerPoll = 8;
// Channels whose handler is looked at in a turn without events.
constexpr size_t kHandlersPerTurn = 8;
// Until the next look at a port that is not known. An event says that it has become active, but its
// address may come later.
constexpr Nanos kFirstReadDelay = 1 * kSecond;
constexpr Nanos kLongestReadDelay = 60 * kSecond;

// Returns the tag of the queue pair that an event breaks, or 0 if there is none.
uint32_t TagOf(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(event.element.qp->qp_context));
    default:
      return 0;
  }
}

}  // namespace

// Also those that are not new, which do nothing if it is too early.
void VerbsDevice::ProbeAllSoon() {
  probes_ = {};
  for (const auto& channel : channels_.copy()) probes_.push({0, channel->tag()});
}

int VerbsDevice::Route(const ibv_wc* completions, int count) {
  int handled = 0;
  for (int i = 0; i < count; ++i) {
    VerbsChannel* channel = channels_.Find(QueuePair::TagOf(completions[i].wr_id));
    // The queue may still have completions of a queue pair that was destroyed.
    if (channel != nullptr) handled += channel->OnCompletion(completions[i]);
  }
  return handled;
}

int VerbsDevice::PollQueue(CompletionQueue* queue) {
  if (queue->broken()) return 0;
  const int released = queue->TakeReleased();
  int handled = 0;
  // Limit the work, so that a busy peer cannot keep the polling thread here.
  for (int batch = 0; batch < kBatchesPerPoll; ++batch) {
    ibv_wc completions[kBatch];
    const int count = ibv_poll_cq(queue->get(), kBatch, completions);
    if (count < 0) {
      BreakQueue(queue, PollError());
      return handled;
    }
    handled += Route(completions, count);
    if (count < kBatch) {
      if (released > 0) queue->Emptied(released);
      return handled;
    }
  }
  queue->Release(released);
  // Report work even if no channel handled any, because there may be more.
  return std::max(handled, 1);
}

// Looks at the next `most` channels, and calls for those whose handler is gone. Returns whether
// there was one.
bool VerbsDevice::CallAbandoned(size_t most) {
  bool found = false;
  channels_.LookAtNext(most, [&](const auto& channel) {
    if (!channel->abandoned()) return;
    Attend(channel->tag());
    found = true;
  });
  return found;
}

void VerbsDevice::ProbePeers(Nanos now) {
  probed_ = now;
  CallAbandoned(channels_.copy().size());
  for (const uint32_t tag : probed_often_) {
    if (VerbsChannel* channel = channels_.Known(tag)) channel->Probe(now);
  }
  while (!probes_.empty() && probes_.top().first <= now) {
    const uint32_t tag = probes_.top().second;
    probes_.pop();
    if (VerbsChannel* channel = channels_.Known(tag)) {
      probes_.push({std::max(channel->Probe(now), now + kProbeInterval), tag});
    }
  }
}

void VerbsDevice::ServiceCallers() {
  calls_.Take(&callers_);
  for (const uint32_t tag : callers_) {
    VerbsChannel* channel = channels_.Find(tag);
    if (channel == nullptr) continue;
    if (channel->Service()) {
      if (channel->NeedsProbes()) probed_often_.insert(tag);
      continue;
    }
    channels_.Remove(tag);
  }
}

int VerbsDevice::Poll() {
  if (!Usable()) return 0;
  asleep_.store(false);
  channels_.Refresh();
  const Nanos now = polled_at_ = Now();
  if (sleeper_.woken() || now - descriptors_checked_ > kDescriptorInterval) {
    HandleDescriptors();
  }
  if (!adapter_->port().known && now >= read_due_) ReadPort(/*tell=*/true);
  int handled = Route(met_, std::exchange(met_count_, 0));
  for (CompletionQueue* queue : adapter_->Queues()) handled += PollQueue(queue);
  // Not before: what ended while this process was suspended is no sign of a peer that is silent.
  if (now - probed_ >= kProbeInterval) ProbePeers(now);
  if (handled == 0) CallAbandoned(kHandlersPerTurn);
  ServiceCallers();
  return handled;
}

bool VerbsDevice::ArmNotification() {
  if (!Usable()) return true;
  asleep_.store(true);
  for (auto it = probed_often_.begin(); it != probed_often_.end();) {
    const VerbsChannel* channel = channels_.Known(*it);
    const bool waits = channel != nullptr && channel->NeedsProbes();
    it = waits ? std::next(it) : probed_often_.erase(it);
  }
  const bool known = adapter_->port().known;
  if (!channels_.copy().empty() || !known) {
    Nanos due = polled_at_ + (probed_often_.empty() ? keepalive_ : kProbeInterval);
    if (!probes_.empty()) due = std::min(due, probes_.top().first);
    if (!known) due = std::min(due, read_due_);
    sleeper_.WakeAfter(polled_at_, std::max(due - polled_at_, kProbeInterval));
  }
  if (!adapter_->dead()) {
    for (CompletionQueue* queue : adapter_->Queues()) {
      if (!ArmQueue(queue)) return false;
    }
  }
  return met_count_ == 0 && !channels_.stale() && calls_.empty() &&
         !CallAbandoned(kHandlersPerTurn);
}

bool VerbsDevice::ArmQueue(CompletionQueue* queue) {
  if (queue->broken()) return true;
  const int error = ibv_req_notify_cq(queue->get(), 0);
  if (error != 0) {
    BreakQueue(queue, VerbError(error, "ibv_req_notify_cq", adapter_->Name()));
    return false;
  }
  // Completions that arrived before the request cause no event.
  if (met_count_ != 0) return true;
  const int count = ibv_poll_cq(queue->get(), kBatch, met_);
  if (count < 0) BreakQueue(queue, PollError());
  met_count_ = std::max(0, count);
  return count >= 0;
}

void VerbsDevice::HandleDescriptors() {
  descriptors_checked_ = Now();
  sleeper_.Clear();
  adapter_->DrainCompletionEvents();
  ibv_async_event event;
  while (adapter_->NextAsyncEvent(&event)) {
    const uint32_t tag = TagOf(event);
    // Acknowledge first: destroying a queue pair waits for the acknowledgment.
    adapter_->library().ack_async_event(&event);
    HandleAsyncEvent(event, tag);
  }
}

void VerbsDevice::HandleAsyncEvent(const ibv_async_event& event, uint32_t tag) {
  const std::string sentence = adapter_->Name() + ": " + EventSentence(event.event_type);
  switch (event.event_type) {
    case IBV_EVENT_DEVICE_FATAL:
      Log(LogLevel::kError, sentence);
      adapter_->Kill();
      return FailChannels(nullptr, Status(Code::kUnavailable, sentence));
    case IBV_EVENT_CQ_ERR:
      for (CompletionQueue* queue : adapter_->Queues()) {
        if (queue->get() == event.element.cq)
          BreakQueue(queue, Status(Code::kUnavailable, sentence));
      }
      return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      Log(LogLevel::kWarning, sentence);
      // If the queue pair has nothing in flight, no completion reports the error.
      if (VerbsChannel* channel = channels_.Find(tag)) {
        channel->Fail(Status(Code::kUnavailable, sentence));
      }
      return;
    }
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      break;
    default:
      return Log(LogLevel::kDebug, sentence);
  }
  if (event.element.port_num != adapter_->port().number) return;
  Log(adapter_->port().known ? LogLevel::kWarning : LogLevel::kInfo, sentence);
  // If this breaks channels, their completions report it.
  if (event.event_type == IBV_EVENT_PORT_ERR) return adapter_->set_active(false);
  read_delay_ = 0;
  ReadPort(/*tell=*/false);
  const bool active = event.event_type == IBV_EVENT_PORT_ACTIVE && adapter_->port().known;
  if (active) adapter_->set_active(true);
}

// Reads the addresses of the port, which may have changed. New channels use them.
void VerbsDevice::ReadPort(bool tell) {
  const bool known = adapter_->port().known;
  read_delay_ = std::clamp(2 * read_delay_, kFirstReadDelay, kLongestReadDelay);
  read_due_ = polled_at_ + read_delay_;
  const std::string before = adapter_->port().Text();
  const Status read = adapter_->Reread();
  if (!read.ok()) {
    const bool news = tell && std::exchange(unread_, read.message()) != read.message();
    if (news) Log(LogLevel::kInfo, "verbs: " + adapter_->Name() + " is not used: " + unread_);
    return;
  }
  if (!known) adapter_->set_active(true);
  const std::string now = adapter_->port().Text();
  if (now != before)
    Log(LogLevel::kInfo, "verbs: " + now + (known ? ", before " + before : " is used, too"));
}

// A driver's, for completions that make no sense to it, as in mlx5_poll_cq() of rdma-core.
Status VerbsDevice::PollError() const {
  return Status(Code::kUnavailable,
                "ibv_poll_cq failed on " + adapter_->Name() + ": its completion queue is broken");
}

// Its channels end with the reason; new ones get another queue.
void VerbsDevice::BreakQueue(CompletionQueue* queue, const Status& reason) {
  if (!queue->Break()) return;
  Log(LogLevel::kError, reason.message());
  FailChannels(queue, reason);
}

// Those of a queue; null: all.
void VerbsDevice::FailChannels(const CompletionQueue* queue, const Status& reason) {
  for (const auto& channel : channels_.All()) {
    if (queue == nullptr || channel->queue() == queue) channel->Fail(reason);
  }
}

}  // namespace rdma_transport::fabric::verbs
