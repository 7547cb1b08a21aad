#include "fabric/verbs/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "fabric/host/region.h"
#include "fabric/verbs/errors.h"
#include "fabric/verbs/memlock.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr Nanos kDescriptorInterval = 100 * kMillisecond;  // for asynchronous events while busy
constexpr Nanos kProbeInterval = 100 * kMillisecond;
constexpr int kBatchesPerPoll = 8;
constexpr uint64_t kLargestChunk = uint64_t{1} << 30;

// The tags of a channel's queue pairs are consecutive.
uint32_t ChannelTag(uint32_t tag) { return tag / kMaxQueuePairs * kMaxQueuePairs; }

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

bool IsIpv4(const uint8_t* gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid, kPrefix, sizeof(kPrefix)) == 0;
}

}  // namespace

Status VerbsDevice::Create(const Settings& settings, std::unique_ptr<Device>* device) {
  std::unique_ptr<VerbsDevice> made(new VerbsDevice);
  RDMA_RETURN_IF_ERROR(made->Init(settings));
  *device = std::move(made);
  return OkStatus();
}

Status VerbsDevice::Init(const Settings& settings) {
  RDMA_RETURN_IF_ERROR(Adapter::Open(settings.verbs, &adapter_));
  memory_ = std::make_unique<RegisteredMemory>(adapter_.get());
  chunk_ = std::min(kLargestChunk, std::max<uint64_t>(adapter_->port().largest_message, 4096));
  keepalive_ = settings.peer_timeout;
  if (settings.verbs.chunk != 0) chunk_ = std::min(chunk_, settings.verbs.chunk);
  RDMA_RETURN_IF_ERROR(CheckMemlock(MemoryToBeginWith(settings.verbs.ring), MemlockLimit()));
  RDMA_RETURN_IF_ERROR(sleeper_.Init());
  RDMA_RETURN_IF_ERROR(sleeper_.Watch(adapter_->completion_events()));
  return sleeper_.Watch(adapter_->async_events());
}

VerbsDevice::~VerbsDevice() {
  snapshot_.clear();  // destroys channels without another owner before the adapter
}

std::string VerbsDevice::Summary() const { return "verbs by " + adapter_->port().Text(); }

// --- Memory ---

Status VerbsDevice::Allocate(size_t length, Access access, void* place,
                             std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckAllocation(*this, length));
  std::unique_ptr<host::MemoryRegion> made;
  RDMA_RETURN_IF_ERROR(host::MemoryRegion::Create(memory_->NewKey(), length, access, place, &made));
  RDMA_RETURN_IF_ERROR(memory_->Add(made.get(), /*now=*/true));
  made->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  *region = std::move(made);
  return OkStatus();
}

Status VerbsDevice::Adopt(Region* region) {
  RDMA_RETURN_IF_ERROR(memory_->Add(region, /*now=*/false));
  region->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  return OkStatus();
}

Status VerbsDevice::Import(const DmaBuf& memory, Access access, std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  auto made = std::make_unique<host::ImportedRegion>(memory_->NewKeyOfImported(), memory, access);
  RDMA_RETURN_IF_ERROR(memory_->AddImported(made.get(), memory));
  made->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  *region = std::move(made);
  return OkStatus();
}

void VerbsDevice::OnRegionEnd(uint64_t key) {
  for (const auto& channel : Channels()) channel->ForgetRegion(key);
  memory_->Remove(key);
}

bool VerbsDevice::Locate(const void* data, RemoteSpan* span) const {
  return Usable() && memory_->Locate(data, span);
}

// --- Channels ---

Status VerbsDevice::Reaches(std::string_view channel_address) const {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(channel_address, &peer));
  const Port& port = adapter_->port();
  if (peer.ethernet != port.ethernet) {
    return Status(Code::kUnavailable, std::string("it is on ") +
                                          (peer.ethernet ? "RoCE" : "InfiniBand") + ", this is " +
                                          port.Text());
  }
  if (port.ethernet && IsIpv4(peer.gid.data()) != IsIpv4(port.gid.bytes.raw)) {
    return Status(Code::kUnavailable,
                  "one GID is IPv4, the other IPv6: set RDMA_TRANSPORT_GID_INDEX so "
                  "that both are of one kind; here " +
                      port.Text());
  }
  return OkStatus();
}

Status VerbsDevice::Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  uint32_t tag = 0;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    tag = next_tag_;
    next_tag_ += kMaxQueuePairs;
  }
  auto made =
      std::make_shared<VerbsChannel>(static_cast<ChannelDevice*>(this), std::move(handler), tag);
  RDMA_RETURN_IF_ERROR(made->Open());
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    channels_[tag] = made;
    channels_version_.fetch_add(1);
  }
  // A sleeping polling thread has not requested events of a completion queue created for this
  // channel.
  Wake();
  *channel = std::move(made);
  return OkStatus();
}

std::vector<std::shared_ptr<VerbsChannel>> VerbsDevice::Channels() const {
  std::vector<std::shared_ptr<VerbsChannel>> channels;
  std::lock_guard<std::mutex> lock(channels_mu_);
  for (const auto& [tag, weak] : channels_) {
    if (auto channel = weak.lock()) channels.push_back(std::move(channel));
  }
  return channels;
}

void VerbsDevice::RefreshSnapshot() {
  const uint64_t version = channels_version_.load();
  if (version == snapshot_version_) return;
  std::map<uint32_t, std::shared_ptr<VerbsChannel>> fresh;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    for (auto it = channels_.begin(); it != channels_.end();) {
      if (auto channel = it->second.lock()) {
        fresh[it->first] = std::move(channel);
        ++it;
      } else {
        it = channels_.erase(it);
      }
    }
  }
  snapshot_.swap(fresh);
  snapshot_version_ = version;
}

// --- The polling thread ---

int VerbsDevice::Route(const ibv_wc* completions, int count) {
  int handled = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t channel = ChannelTag(QueuePair::TagOf(completions[i].wr_id));
    auto found = snapshot_.find(channel);
    if (found == snapshot_.end()) {  // the channel is new
      RefreshSnapshot();
      found = snapshot_.find(channel);
    }
    // The queue may still have completions of a queue pair that was destroyed.
    if (found != snapshot_.end()) handled += found->second->OnCompletion(completions[i]);
  }
  return handled;
}

int VerbsDevice::PollQueue(CompletionQueue* queue) {
  const int released = queue->TakeReleased();
  int handled = 0;
  // Limit the work, so that a busy peer cannot keep the polling thread here.
  for (int batch = 0; batch < kBatchesPerPoll; ++batch) {
    ibv_wc completions[kBatch];
    const int count = ibv_poll_cq(queue->get(), kBatch, completions);
    if (count < 0) {
      FailAll(Status(Code::kInternal, "ibv_poll_cq failed on " + adapter_->Name() +
                                          ": its completion queue is broken"));
      queue->Release(released);
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

int VerbsDevice::Poll() {
  if (!Usable()) return 0;
  asleep_.store(false);
  RefreshSnapshot();
  const Nanos now = polled_at_ = Now();
  if (sleeper_.woken() || now - descriptors_checked_ > kDescriptorInterval) {
    HandleDescriptors();
  }
  if (now - probed_ >= kProbeInterval) {
    probed_ = now;
    for (const auto& [tag, channel] : snapshot_) channel->Probe(now);
  }
  int handled = Route(met_, std::exchange(met_count_, 0));
  for (CompletionQueue* queue : adapter_->Queues()) handled += PollQueue(queue);
  bool over = false;
  for (const auto& [tag, channel] : snapshot_) {
    if (channel->NeedsService()) over |= !channel->Service();
  }
  if (over) {
    std::lock_guard<std::mutex> lock(channels_mu_);
    for (auto& [tag, channel] : snapshot_) {
      if (channel->finished()) channels_.erase(tag);
    }
    channels_version_.fetch_add(1);
  }
  return handled;
}

bool VerbsDevice::ArmNotification() {
  if (!Usable()) return true;
  asleep_.store(true);
  bool probe = false;
  for (const auto& [tag, channel] : snapshot_) probe |= channel->BeforeArmNotification();
  if (!snapshot_.empty()) {
    sleeper_.WakeAfter(polled_at_, probe ? kProbeInterval : keepalive_);
  }
  for (CompletionQueue* queue : adapter_->Queues()) {
    const int error = ibv_req_notify_cq(queue->get(), 0);
    if (error != 0) {
      FailAll(VerbError(error, "ibv_req_notify_cq", adapter_->Name()));
      return false;
    }
    // Completions that arrived before the request cause no event.
    if (met_count_ == 0) met_count_ = std::max(0, ibv_poll_cq(queue->get(), kBatch, met_));
  }
  return met_count_ == 0 && channels_version_.load() == snapshot_version_ &&
         std::none_of(snapshot_.begin(), snapshot_.end(),
                      [](const auto& entry) { return entry.second->NeedsService(); });
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
    case IBV_EVENT_CQ_ERR:
      Log(LogLevel::kError, sentence);
      return FailAll(Status(Code::kUnavailable, sentence));
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      Log(LogLevel::kWarning, sentence);
      std::shared_ptr<VerbsChannel> channel;
      {
        std::lock_guard<std::mutex> lock(channels_mu_);
        const auto found = channels_.find(ChannelTag(tag));
        if (found != channels_.end()) channel = found->second.lock();
      }
      // If the queue pair has nothing in flight, no completion reports the error.
      if (channel != nullptr) channel->Fail(Status(Code::kUnavailable, sentence));
      return;
    }
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_GID_CHANGE:
      // If this breaks channels, their completions report it.
      return Log(LogLevel::kWarning, sentence);
    default:
      return Log(LogLevel::kDebug, sentence);
  }
}

void VerbsDevice::FailAll(const Status& reason) {
  for (const auto& channel : Channels()) channel->Fail(reason);
}

}  // namespace rdma_transport::fabric::verbs
