#include "fabric/libfabric/device.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "fabric/host/region.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr Nanos kProbeInterval = 100 * kMillisecond;
// Of channels that wait for the provider, or for their end.
constexpr Nanos kServiceInterval = 200 * kMicrosecond;
constexpr Nanos kRestlessSleep = kMillisecond;
constexpr Nanos kWriteEndDelay = 5 * kMillisecond;
// Most confirmations go with a message in the other direction, which seldom takes longer.
constexpr Nanos kConfirmationDelay = 5 * kMillisecond;
// Of lazy notifications, if this thread neither sleeps nor sends others to the peer.
constexpr Nanos kLongestDelay = 500 * kMicrosecond;
// How long the device makes progress after its last channel has finished: a message of that may
// have completed before it has left.
constexpr Nanos kFarewell = kSecond;
constexpr int kBatchesPerPoll = 8;
constexpr int kMaxFruitless = 64;
constexpr uint64_t kLargestChunk = uint64_t{1} << 30;
constexpr uint32_t kMinFrames = 8;

constexpr Nanos kShortestBlindSleep = 20 * kMicrosecond;
constexpr Nanos kLongestBlindSleep = kMillisecond;

}  // namespace

Nanos BlindSleep(Nanos silence) {
  return std::clamp(silence / 64, kShortestBlindSleep, kLongestBlindSleep);
}

Status LibfabricDevice::OpenNics(const Settings& settings, std::vector<Rails>* providers) {
  std::shared_ptr<const Library> library;
  RDMA_RETURN_IF_ERROR(LoadLibrary(settings.libfabric.library, &library));
  std::vector<Provider> found;
  RDMA_RETURN_IF_ERROR(FindProviders(*library, settings, &found));
  Status refused;
  for (const Provider& provider : found) {
    Rails rails;
    rails.name = "libfabric/" + provider.name;
    for (const InfoPtr& nic : provider.nics) {
      std::unique_ptr<LibfabricDevice> made(new LibfabricDevice);
      const Status opened = made->Init(settings, provider.name, *nic, library);
      if (opened.ok()) {
        rails.nics.push_back(std::move(made));
      } else if (refused.ok()) {
        refused = opened;
      }
    }
    if (!rails.nics.empty()) providers->push_back(std::move(rails));
  }
  if (providers->empty()) return refused;
  if (!refused.ok()) Log(LogLevel::kWarning, "libfabric: " + refused.message());
  return OkStatus();
}

Status LibfabricDevice::Create(const Settings& settings, std::vector<Member>* members) {
  std::vector<Rails> providers;
  RDMA_RETURN_IF_ERROR(OpenNics(settings, &providers));
  for (Rails& rails : providers) {
    members->push_back({std::move(rails.name), std::move(rails.nics.front())});
  }
  return OkStatus();
}

Status LibfabricDevice::Init(const Settings& settings, const std::string& provider,
                             const fi_info& nic, std::shared_ptr<const Library> library) {
  RDMA_RETURN_IF_ERROR(Domain::Open(std::move(library), &nic, &domain_));
  const Traits& traits = domain_->traits();
  const bool per_peer = traits.cheap_registration || settings.verbs.isolation == Isolation::kPeer;
  memory_ = std::make_unique<RegisteredMemory>(domain_.get(), per_peer);
  chunk_ = std::min(kLargestChunk, std::max<uint64_t>(traits.largest_transfer, 1));
  if (settings.verbs.chunk != 0) chunk_ = std::min(chunk_, settings.verbs.chunk);
  frames_ =
      std::max(static_cast<uint32_t>(settings.verbs.ring / Domain::frame_bytes()), kMinFrames);
  peer_timeout_ = settings.peer_timeout;
  const char* interface = nic.domain_attr->name;
  description_ = "libfabric by " + provider + " on " +
                 (interface == nullptr ? "an unnamed interface" : interface) + " (" +
                 domain_->Text(domain_->name()) + ")";
  Frame frame;
  if (!domain_->TakeFrame(&frame) || !domain_->TakeFrame(&mark_destination_)) {
    return Status(Code::kResourceExhausted, "no memory for the messages of libfabric");
  }
  RDMA_RETURN_IF_ERROR(
      domain_->Register(frame.data, Domain::frame_bytes(), FI_REMOTE_READ, &mark_));
  RDMA_RETURN_IF_ERROR(sleeper_.Init());
  queue_events_ = host::FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!queue_events_.valid()) return StatusFromErrno(errno, "epoll_create1");
  RDMA_RETURN_IF_ERROR(sleeper_.Add(queue_events_.get()));
  if (traits.waits) RDMA_RETURN_IF_ERROR(AddToQueueEvents(domain_->wait_descriptor()));
  for (size_t i = 0; i < domain_->most_receives(); ++i) {
    Operation* operation = NewOperation(Operation::Kind::kReceive);
    if (!domain_->TakeFrame(&operation->frame)) {
      return Status(Code::kResourceExhausted, "no memory for the messages of libfabric");
    }
    unposted_.push_back(operation);
  }
  PostReceives();
  return OkStatus();
}

LibfabricDevice::~LibfabricDevice() {
  if (domain_ == nullptr) return;
  mark_.reset();  // some providers keep an endpoint open for its registrations
  domain_->Stop();
  // Channels give back to the device what they hold.
  for (Operation& operation : operations_) operation.channel.reset();
  by_number_.clear();
  by_tag_.clear();
  channels_.clear();
}

Status LibfabricDevice::AddToQueueEvents(int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  if (epoll_ctl(queue_events_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return StatusFromErrno(errno, "epoll_ctl");
  }
  return OkStatus();
}

std::string LibfabricDevice::Summary() const { return description_; }

// --- Memory ---

Status LibfabricDevice::Allocate(size_t length, Access access, void* place,
                                 std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckAllocation(*this, length));
  std::unique_ptr<host::MemoryRegion> made;
  RDMA_RETURN_IF_ERROR(host::MemoryRegion::Create(memory_->NewKey(), length, access, place, &made));
  RDMA_RETURN_IF_ERROR(Adopt(made.get()));
  *region = std::move(made);
  return OkStatus();
}

// It is registered when a peer, or the provider, needs it.
Status LibfabricDevice::Adopt(Region* region) {
  memory_->Add(region);
  region->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  return OkStatus();
}

void LibfabricDevice::OnRegionEnd(uint64_t key) {
  for (const auto& channel : Open()) channel->ForgetRegion(key);
  memory_->Remove(key);
}

bool LibfabricDevice::Locate(const void* data, RemoteSpan* span) const {
  return Usable() && memory_->Locate(data, span);
}

// --- Operations and peers ---

Operation* LibfabricDevice::NewOperation(Operation::Kind kind) {
  std::lock_guard<std::mutex> lock(operations_mu_);
  Operation* operation = nullptr;
  if (free_.empty()) {
    operation = &operations_.emplace_back();
  } else {
    operation = free_.back();
    free_.pop_back();
  }
  operation->kind = kind;
  operation->transfer = 0;
  operation->sequence = 0;
  return operation;
}

void LibfabricDevice::Return(Operation* operation) {
  const auto channel = std::move(operation->channel);  // may end here, without the lock
  std::lock_guard<std::mutex> lock(operations_mu_);
  free_.push_back(operation);
}

Status LibfabricDevice::Reach(const std::string& name, fi_addr_t* peer) {
  std::lock_guard<std::mutex> lock(peers_mu_);
  const auto found = peers_.find(name);
  if (found != peers_.end()) {
    ++found->second.channels;
    *peer = found->second.address;
    return OkStatus();
  }
  RDMA_RETURN_IF_ERROR(domain_->Insert(name, peer));
  peers_[name] = {*peer, 1};
  return OkStatus();
}

void LibfabricDevice::Leave(const std::string& name) {
  std::lock_guard<std::mutex> lock(peers_mu_);
  const auto found = peers_.find(name);
  if (found == peers_.end() || --found->second.channels > 0) return;
  if (Usable()) domain_->Remove(found->second.address);
  peers_.erase(found);
}

// --- Channels ---

Status LibfabricDevice::Reaches(std::string_view channel_address) const {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(channel_address, &peer));
  const Traits& traits = domain_->traits();
  if (peer.protocol != traits.protocol || peer.protocol_version != traits.protocol_version) {
    return Status(Code::kUnavailable, "its provider " + peer.provider +
                                          " does not speak the protocol of " + domain_->provider() +
                                          " here (RDMA_TRANSPORT_LIBFABRIC_PROVIDER)");
  }
  if (peer.format != traits.address_format) {
    return Status(Code::kUnavailable, "its address is of another kind than " +
                                          domain_->Text(domain_->name()) +
                                          " here (RDMA_TRANSPORT_LIBFABRIC_INTERFACE)");
  }
  if (domain_->IsLoopback(peer.name) != domain_->IsLoopback(domain_->name())) {
    return Status(Code::kUnavailable,
                  "one of " + domain_->Text(domain_->name()) + " here and " +
                      domain_->Text(peer.name) +
                      " there is on the loopback interface (RDMA_TRANSPORT_LIBFABRIC_INTERFACE)");
  }
  return OkStatus();
}

Status LibfabricDevice::Open(std::weak_ptr<ChannelHandler> handler,
                             std::shared_ptr<Channel>* channel) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  std::shared_ptr<LibfabricChannel> made;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    if (channels_.size() >= kMaxChannels) {
      return Status(Code::kResourceExhausted,
                    "libfabric has as many channels as it can tell apart");
    }
    // A number is used again as late as possible: writes to its last channel may still arrive.
    do {
      last_number_ = last_number_ % kMaxChannels + 1;
    } while (channels_.count(last_number_) != 0);
    made = std::make_shared<LibfabricChannel>(static_cast<ChannelDevice*>(this), std::move(handler),
                                              last_number_);
    channels_[last_number_] = made;
    channels_version_.fetch_add(1);
  }
  Wake();
  Channel* shown = made.get();
  *channel = std::shared_ptr<Channel>(shown, [made](Channel*) { made->Abandon(); });
  return OkStatus();
}

std::vector<std::shared_ptr<LibfabricChannel>> LibfabricDevice::Open() const {
  std::vector<std::shared_ptr<LibfabricChannel>> open;
  std::lock_guard<std::mutex> lock(channels_mu_);
  for (const auto& [number, channel] : channels_) open.push_back(channel);
  return open;
}

void LibfabricDevice::RefreshSnapshot() {
  if (channels_version_.load() == snapshot_version_) return;
  Channels by_number;
  Channels by_tag;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    snapshot_version_ = channels_version_.load();
    for (const auto& [number, channel] : channels_) {
      by_number[number] = channel;
      by_tag[channel->tag()] = channel;
    }
  }
  by_number_.swap(by_number);
  by_tag_.swap(by_tag);
}

std::shared_ptr<LibfabricChannel> LibfabricDevice::Find(const Channels& channels, uint64_t key) {
  auto found = channels.find(key);
  if (found == channels.end()) {  // the channel is new
    RefreshSnapshot();
    found = channels.find(key);
  }
  return found == channels.end() ? nullptr : found->second;
}

void LibfabricDevice::Forget(const LibfabricChannel& channel) {
  std::lock_guard<std::mutex> lock(channels_mu_);
  channels_.erase(channel.number());
  channels_version_.fetch_add(1);
  in_use_until_ = Now() + kFarewell;
}

void LibfabricDevice::FailAll(const Status& reason) {
  for (const auto& channel : Open()) channel->Fail(reason);
}

// --- The polling thread ---

void LibfabricDevice::PostReceives() {
  while (!unposted_.empty() && domain_->Receive(unposted_.back()) == 0) unposted_.pop_back();
}

// Anyone who reaches the endpoint can send to it, so nothing is taken that has not the random tag
// of a channel.
void LibfabricDevice::HandleMessage(const Operation& operation, size_t length, Nanos now) {
  MessageHeader header;
  if (length < sizeof(header) || length > Domain::frame_bytes()) return;
  std::memcpy(&header, operation.frame.data, sizeof(header));
  const auto channel = Find(by_tag_, header.tag);
  if (channel == nullptr) return;
  const std::string_view bytes(operation.frame.data + sizeof(header), length - sizeof(header));
  channel->OnMessage(header, bytes, now);
}

void LibfabricDevice::Handle(const Completion& completion, Nanos now) {
  Operation* operation = completion.operation;
  if (operation == nullptr) {
    const auto channel = Find(by_number_, completion.data >> 16);
    if (channel != nullptr) {
      channel->OnArrivedWrite(static_cast<uint16_t>(completion.data & 0xffff), now);
    }
  } else if (operation->kind == Operation::Kind::kReceive) {
    if (completion.status.ok()) HandleMessage(*operation, completion.length, now);
    unposted_.push_back(operation);
  } else if (operation->channel != nullptr) {
    operation->channel->OnEnded(*operation, completion.status);
    Return(operation);
  }
}

void LibfabricDevice::TakeCompletions() {
  Status error;
  if (!domain_->Completions(&ended_, &error)) FailAll(error);
}

int LibfabricDevice::Poll() {
  if (!Usable()) return 0;
  asleep_.store(false);
  const bool by_queue = sleeper_.woken() && sleeper_.Clear();
  // Threads that sleep while this one polls need not know of events.
  if (armed_ && !by_queue) sleeper_.Unwatch(queue_events_.get());
  armed_ = false;
  RefreshSnapshot();
  if (!InUse()) return 0;
  const Nanos now = Now();
  if (by_number_.empty() && now > in_use_until_) in_use_until_ = 0;
  int handled = 0;
  for (int batch = 0; batch < kBatchesPerPoll; ++batch) {
    if (ended_.empty()) TakeCompletions();
    if (ended_.empty()) break;
    handled += static_cast<int>(ended_.size());
    for (const Completion& completion : ended_) Handle(completion, now);
    ended_.clear();
    PostReceives();
  }
  if (handled > 0) active_at_.store(now);
  if (by_queue) {
    fruitless_ = handled > 0 ? 0 : fruitless_ + 1;
    if (fruitless_ == kMaxFruitless) WatchBelowQueue();
  }
  const bool probe = now - probed_ >= kProbeInterval;
  if (probe) {
    probed_ = now;
    PostReceives();
  }
  const bool again = handled > 0 || now - served_ >= kServiceInterval;
  if (again) served_ = now;
  for (const auto& [number, channel] : by_number_) {
    if (probe) channel->Probe(now);
    channel->ConfirmIfDue(now - kConfirmationDelay);
    channel->SendDelayedIfDue(now - kLongestDelay);
    if (!channel->NeedsService() && !(again && channel->Restless())) continue;
    if (!channel->Service(now)) Forget(*channel);
  }
  return handled;
}

bool LibfabricDevice::ArmNotification() {
  if (!Usable()) return true;
  asleep_.store(true);
  const Nanos now = Now();
  Nanos most = domain_->traits().waits ? peer_timeout_ / 8 : BlindSleep(now - active_at_.load());
  for (const auto& [number, channel] : by_number_) {
    channel->BeforeSleep();
    if (channel->Restless()) most = std::min(most, kRestlessSleep);
    if (channel->OwesConfirmation()) most = std::min(most, kConfirmationDelay);
  }
  if (InUse()) {
    sleeper_.WakeAfter(now, most);
    if (!domain_->TryWait()) return false;
    // TCP's fi_trywait() before libfabric 1.20 does not look.
    if (ended_.empty()) TakeCompletions();
    if (domain_->gave_way()) return false;
    armed_ = true;
    sleeper_.WatchOnce(queue_events_.get());  // out of use, strangers wake nobody
  }
  return ended_.empty() && channels_version_.load() == snapshot_version_ &&
         std::none_of(by_number_.begin(), by_number_.end(),
                      [](const auto& entry) { return entry.second->NeedsService(); });
}

void LibfabricDevice::WakeSoon() { sleeper_.WakeAfter(Now(), kWriteEndDelay); }

// Its end, or the answer to it, wakes nobody.
void LibfabricDevice::OnStarted() {
  if (domain_->traits().waits) return;
  const Nanos now = Now();
  active_at_.store(now);
  if (asleep()) sleeper_.WakeAfter(now, kShortestBlindSleep);
}

// The descriptor of TCP's queue before libfabric 1.20 stays readable after the first completion. It
// holds the one of its sockets, which tells the truth.
void LibfabricDevice::WatchBelowQueue() {
  const std::vector<int> below = domain_->DescriptorsBelowWait();
  if (below.empty()) return;
  epoll_ctl(queue_events_.get(), EPOLL_CTL_DEL, domain_->wait_descriptor(), nullptr);
  for (const int descriptor : below) AddToQueueEvents(descriptor).IgnoreError();
}

}  // namespace rdma_transport::fabric::libfabric
