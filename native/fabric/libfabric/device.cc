#include "fabric/libfabric/device.h"

#include <algorithm>
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
// How long the device makes progress after its last channel has finished: a message of that may
// have completed before it has left.
constexpr Nanos kFarewell = kSecond;
constexpr int kBatchesPerPoll = 8;

}  // namespace

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

Status LibfabricDevice::Init(const Settings& settings, const std::string& provider,
                             const fi_info& nic, std::shared_ptr<const Library> library) {
  RDMA_RETURN_IF_ERROR(endpoint_.Init(settings, nic, std::move(library)));
  description_ = "libfabric by " + provider + " on " + endpoint_.text();
  for (size_t i = 0; i < domain().most_receives(); ++i) {
    Operation* operation = endpoint_.NewOperation(Operation::Kind::kReceive);
    if (operation == nullptr) {
      return Status(Code::kResourceExhausted, "no memory for the messages of libfabric");
    }
    unposted_.push_back(operation);
  }
  PostReceives();
  return OkStatus();
}

LibfabricDevice::~LibfabricDevice() {
  endpoint_.Stop();
  channels_.Clear();
}

std::string LibfabricDevice::Summary() const { return description_; }

// --- Memory ---

Status LibfabricDevice::Allocate(size_t length, Access access, void* place,
                                 std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckAllocation(*this, length));
  std::unique_ptr<host::MemoryRegion> made;
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(endpoint_.memory().NewKey(), length, access, place, &made));
  RDMA_RETURN_IF_ERROR(Adopt(made.get()));
  *region = std::move(made);
  return OkStatus();
}

// It is registered when a peer, or the provider, needs it.
Status LibfabricDevice::Adopt(Region* region) {
  endpoint_.memory().Add(region);
  region->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  return OkStatus();
}

void LibfabricDevice::OnRegionEnd(uint64_t key) {
  for (const auto& channel : channels_.All()) channel->WithdrawRegion(key);
  endpoint_.memory().Remove(key);
}

bool LibfabricDevice::Locate(const void* data, RemoteSpan* span) const {
  return Usable() && endpoint_.memory().Locate(data, span);
}

// --- Channels ---

Status LibfabricDevice::Reaches(std::string_view channel_address) const {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(channel_address, &peer));
  const Traits& traits = domain().traits();
  if (peer.protocol != traits.protocol || peer.protocol_version != traits.protocol_version) {
    return Status(Code::kUnavailable, "its provider " + peer.provider +
                                          " does not speak the protocol of " + domain().provider() +
                                          " here (RDMA_TRANSPORT_LIBFABRIC_PROVIDER)");
  }
  if (peer.format != traits.address_format) {
    return Status(Code::kUnavailable, "its address is of another kind than " +
                                          domain().Text(domain().name()) +
                                          " here (RDMA_TRANSPORT_LIBFABRIC_INTERFACE)");
  }
  if (domain().IsLoopback(peer.name) != domain().IsLoopback(domain().name())) {
    return Status(Code::kUnavailable,
                  "one of " + domain().Text(domain().name()) + " here and " +
                      domain().Text(peer.name) +
                      " there is on the loopback interface (RDMA_TRANSPORT_LIBFABRIC_INTERFACE)");
  }
  return OkStatus();
}

Status LibfabricDevice::Open(std::weak_ptr<ChannelHandler> handler,
                             std::shared_ptr<Channel>* channel) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  std::shared_ptr<LibfabricChannel> made;
  // A number is used again as late as possible: writes to its last channel may still arrive.
  do {
    if (channels_.size() >= kMaxChannels) {
      return Status(Code::kResourceExhausted,
                    "libfabric has as many channels as it can tell apart");
    }
    made =
        std::make_shared<LibfabricChannel>(&endpoint_, handler, ++last_number_ % kMaxChannels + 1);
  } while (!channels_.Add(made->number(), made));
  Wake();
  Channel* shown = made.get();
  *channel = std::shared_ptr<Channel>(shown, [made](Channel*) { made->Abandon(); });
  return OkStatus();
}

void LibfabricDevice::Remove(const LibfabricChannel& channel) {
  channels_.Remove(channel.number());
  in_use_until_ = Now() + kFarewell;
}

void LibfabricDevice::FailAll(const Status& reason) {
  for (const auto& channel : channels_.All()) channel->Fail(reason);
}

// --- The polling thread ---

void LibfabricDevice::PostReceives() {
  while (!unposted_.empty() && domain().Receive(unposted_.back()) == 0) unposted_.pop_back();
}

// Anyone who reaches the endpoint can send to it, so nothing is taken that has not the random tag
// of a channel.
void LibfabricDevice::HandleMessage(const Operation& operation, size_t length, Nanos now) {
  MessageHeader header;
  if (length < sizeof(header) || length > Domain::frame_bytes()) return;
  std::memcpy(&header, operation.frame.data, sizeof(header));
  LibfabricChannel* channel = channels_.Find(header.channel);
  if (channel == nullptr || channel->tag() != header.tag) return;
  const std::string_view bytes(operation.frame.data + sizeof(header), length - sizeof(header));
  channel->OnMessage(header, bytes, now);
}

void LibfabricDevice::Handle(const Completion& completion, Nanos now) {
  Operation* operation = completion.operation;
  if (operation == nullptr) {
    if (LibfabricChannel* channel = channels_.Find(completion.data >> 16)) {
      channel->OnArrivedWrite(static_cast<uint16_t>(completion.data & 0xffff), now);
    }
  } else if (operation->kind == Operation::Kind::kReceive) {
    if (completion.status.ok()) HandleMessage(*operation, completion.length, now);
    unposted_.push_back(operation);
  } else if (operation->channel != nullptr) {
    operation->channel->OnEnded(*operation, completion.status);
    endpoint_.Return(operation);
  }
}

void LibfabricDevice::TakeCompletions() {
  Status error;
  if (!domain().Completions(&ended_, &error)) FailAll(error);
}

int LibfabricDevice::Poll() {
  if (!Usable()) return 0;
  endpoint_.OnAwake();
  channels_.Refresh();
  if (!InUse()) return 0;
  const Nanos now = Now();
  if (channels_.copy().empty() && now > in_use_until_) in_use_until_ = 0;
  int handled = 0;
  for (int batch = 0; batch < kBatchesPerPoll; ++batch) {
    if (ended_.empty()) TakeCompletions();
    if (ended_.empty()) break;
    handled += static_cast<int>(ended_.size());
    for (const Completion& completion : ended_) Handle(completion, now);
    ended_.clear();
    PostReceives();
  }
  if (handled > 0) endpoint_.OnEnded(now);
  const bool probe = now - probed_ >= kProbeInterval;
  if (probe) {
    probed_ = now;
    PostReceives();
  }
  const bool again = handled > 0 || now - served_ >= kServiceInterval;
  if (again) served_ = now;
  for (const auto& channel : channels_.copy()) {
    if (probe) channel->Probe(now);
    channel->SendIfDue(now);
    if (!channel->NeedsService() && !(again && channel->Restless())) continue;
    if (!channel->Service(now)) Remove(*channel);
  }
  return handled;
}

bool LibfabricDevice::ArmNotification() {
  if (!Usable()) return true;
  const Nanos now = Now();
  Nanos most = endpoint_.OnSleep(now);
  for (const auto& channel : channels_.copy()) {
    channel->BeforeSleep();
    if (channel->Restless()) most = std::min(most, kRestlessSleep);
    if (channel->due() != 0) most = std::min(most, std::max<Nanos>(channel->due() - now, 1));
  }
  if (InUse()) {
    endpoint_.sleeper().WakeAfter(now, most);
    if (!domain().TryWait()) return false;
    // TCP's fi_trywait() before libfabric 1.20 does not look.
    if (ended_.empty()) TakeCompletions();
    if (domain().gave_way()) return false;
    endpoint_.LetEventsWake();  // out of use, strangers wake nobody
  }
  return ended_.empty() && !channels_.stale() &&
         std::none_of(channels_.copy().begin(), channels_.copy().end(),
                      [](const auto& channel) { return channel->NeedsService(); });
}

}  // namespace rdma_transport::fabric::libfabric
