#include "fabric/striped/channel.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "base/parts.h"

namespace rdma_transport::fabric::striped {
namespace {

// How long a better rail may take to connect than the one that is used then.
constexpr Nanos kPatience = kSecond;

}  // namespace

StripedChannel::StripedChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler)
    : device_(device),
      handler_(std::move(handler)),
      writes_(device->lanes_of_writes()),
      reads_(device->lanes_of_reads()) {}

// --- Rails ---

Rail* StripedChannel::Find(const RailEnd* end) {
  const auto found = std::find_if(rails_.begin(), rails_.end(),
                                  [end](const Rail& rail) { return rail.end.get() == end; });
  return found == rails_.end() ? nullptr : &*found;
}

Rail* StripedChannel::FindId(uint32_t id) {
  const auto found = std::find_if(rails_.begin(), rails_.end(), [id](const Rail& rail) {
    return rail.channel != nullptr && rail.id == id;
  });
  return found == rails_.end() ? nullptr : &*found;
}

bool StripedChannel::OthersThan(size_t slot) const {
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (i != slot && rails_[i].alive() && !rails_[i].failed) return true;
  }
  return false;
}

size_t StripedChannel::FirstUp() const {
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].up) return i;
  }
  return kNone;
}

bool StripedChannel::Unsettled() const {
  return std::any_of(rails_.begin(), rails_.end(),
                     [](const Rail& rail) { return rail.failed && rail.carried; });
}

void StripedChannel::Attend() {
  if (!attended_.exchange(true)) device_->Attend(weak_from_this());
}

// --- Connecting ---

Status StripedChannel::Open() {
  ChannelAddress address;
  address.most_rails = device_->most_rails();
  Status refused;
  bool any = false;
  std::lock_guard<std::mutex> lock(mu_);  // a rail may end at once
  for (const auto& [device, active] : device_->ordered_rails()) {
    if (rails_.size() == kMaxRails) break;
    Rail rail;
    rail.device = device;
    rail.end = std::make_shared<RailEnd>(weak_from_this());
    RailAddress shown;
    const std::vector<PortReport> ports = device->Ports();
    if (!ports.empty()) {
      shown.name = rail.name = ports.front().name;
      shown.subnet = ports.front().subnet;
    }
    // A port that is down is offered later, unless there is no other.
    const Status opened = active || !any ? device->Open(rail.end, &rail.channel)
                                         : Status(Code::kUnavailable, "its port is not active");
    if (opened.ok()) {
      shown.address = rail.channel->Address();
      any = true;
    } else if (refused.ok()) {
      refused = opened;
    }
    rail.id = static_cast<uint32_t>(rails_.size());
    rails_.push_back(std::move(rail));
    address.rails.push_back(std::move(shown));
  }
  address_ = address.Encode();
  return any ? OkStatus() : refused;
}

Status StripedChannel::Connect(std::string_view peer_address, Role role, const Terms& terms) {
  ChannelAddress own;
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(address_, &own));
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &peer));
  std::vector<Rail> unused;  // destroyed without the lock
  struct Link {
    std::shared_ptr<Channel> channel;
    std::shared_ptr<RailEnd> end;
    std::string address;
  };
  std::vector<Link> links;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() != State::kNew) {
      return Status(Code::kAborted, "the channel was closed: " + reason_.message());
    }
    Status unreachable(Code::kUnavailable, "no port reaches one of the peer's");
    const std::vector<Match> matches = MatchRails(own, peer, role, [&](const Match& match) {
      const Status reaches = rails_[match.own].device->Reaches(peer.rails[match.peer].address);
      if (!reaches.ok()) unreachable = reaches;
      return reaches.ok();
    });
    if (matches.empty()) return unreachable;
    // Each rail proves that its end belongs to these two channels, which have so many rails.
    const bool active = role == Role::kActive;
    terms_ = terms;
    terms_.key.append(active ? address_ : peer_address);
    terms_.key.append(active ? peer_address : address_);
    terms_.key.push_back(static_cast<char>(matches.size()));
    unused.swap(rails_);
    for (const Match& match : matches) {
      Rail rail = std::move(unused[match.own]);
      rail.id = rail.end->rail = next_rail_++;
      if (peer.rails[match.peer].address.empty()) unused[match.own].channel.swap(rail.channel);
      if (matches.size() > 1) inbox_.AddRail(rail.id);
      if (rail.channel != nullptr) {
        links.push_back({rail.channel, rail.end, peer.rails[match.peer].address});
      }
      rails_.push_back(std::move(rail));
    }
    active_ = active;
    state_.store(State::kConnecting);
  }
  Status refused;
  size_t begun = 0;
  for (const Link& link : links) {
    const Status connected = link.channel->Connect(link.address, role, terms_);
    if (connected.ok()) {
      ++begun;
      continue;
    }
    if (refused.ok()) refused = connected;
    std::lock_guard<std::mutex> lock(mu_);
    Rail* rail = Find(link.end.get());
    if (rail == nullptr || rail->closed || links.size() == 1) continue;
    rail->closed = rail->released = true;
    FailRail(SlotOf(rail), connected);
  }
  if (begun > 0) return OkStatus();
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() == State::kConnecting) state_.store(State::kNew);
  return refused;
}

void StripedChannel::OnRailConnected(const RailEnd* end) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    Rail* rail = Find(end);
    if (rail == nullptr || rail->failed || state_.load() >= State::kParting) return;
    rail->connected = true;
    rail->since = Now();
    if (connect_due_ == 0) connect_due_ = rail->since + kPatience;
    Prepare(SlotOf(rail));
  }
  ConnectIfReady(/*at_once=*/false);
}

// A better rail may still connect.
void StripedChannel::ConnectIfReady(bool at_once) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    const size_t first = FirstUp();
    if (state_.load() != State::kConnecting || first == kNone) return;
    const bool better = std::any_of(rails_.begin(), rails_.begin() + static_cast<ptrdiff_t>(first),
                                    [](const Rail& rail) { return rail.alive() && !rail.failed; });
    if (better && !at_once && Now() < connect_due_) {
      timed_.store(true);
      return;
    }
    main_ = first;
    state_.store(State::kConnected);
  }
  told_connected_ = true;
  if (const auto handler = handler_.lock()) handler->OnConnected();
  std::lock_guard<std::mutex> lock(mu_);
  Progress();
  Advance();
}

// --- What is asked of the rails ---

std::string StripedChannel::Route() const {
  std::lock_guard<std::mutex> lock(mu_);
  const size_t shown = main_ == kNone ? 0 : main_;
  if (rails_[shown].channel == nullptr) return "";
  std::string route = rails_[shown].channel->Route();
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (i != shown && rails_[i].up) route += ", " + rails_[i].name;
  }
  return route;
}

bool StripedChannel::OutlivedByTransfers() const {
  std::lock_guard<std::mutex> lock(mu_);
  return std::any_of(rails_.begin(), rails_.end(), [](const Rail& rail) {
    return rail.channel != nullptr && rail.channel->OutlivedByTransfers();
  });
}

void StripedChannel::Keep(OwnerRef memory) {
  const auto shared = std::make_shared<OwnerRef>(std::move(memory));
  std::lock_guard<std::mutex> lock(mu_);
  for (const Rail& rail : rails_) {
    if (rail.channel != nullptr) rail.channel->Keep(OwnerRef::Holding(shared));
  }
}

// What a rail cannot share goes by the others. Notifications, which may name the region, wait until
// all rails have taken it: the peer then finds no rail that does not know the region yet.
Status StripedChannel::Share(uint64_t key) {
  std::vector<std::pair<std::shared_ptr<Channel>, uint32_t>> channels;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() != State::kConnected) return NotConnected();
    for (const Rail& rail : rails_) {
      if (rail.connected && !rail.failed) channels.emplace_back(rail.channel, rail.id);
    }
    if (several()) shared_.insert(key);
  }
  Status refused;
  bool shared = channels.empty();
  for (const auto& [channel, id] : channels) {  // without the lock: it may pin pages
    const Status status = channel->Share(key);
    shared |= status.ok();
    if (refused.ok()) refused = status;
    if (!status.ok() || !several()) continue;
    std::lock_guard<std::mutex> lock(mu_);
    Rail* rail = FindId(id);
    if (rail == nullptr || !rail->shared.insert(key).second) continue;
    const size_t slot = SlotOf(rail);
    if (slot == main_ || !SendMark(slot)) continue;
    rail->floor = rail->sent;
    rail->carried = true;
  }
  return shared ? OkStatus() : refused;
}

bool StripedChannel::Locate(const void* data, RemoteSpan* span) const {
  return std::any_of(device_->rails().begin(), device_->rails().end(),
                     [&](const auto& rail) { return rail->Locate(data, span); });
}

Backlog StripedChannel::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  const Rail& rail = rails_[main_ == kNone ? 0 : main_];
  Backlog backlog = rail.channel == nullptr ? Backlog() : rail.channel->backlog();
  backlog.waiting_bytes += writes_.note_bytes();
  return backlog;
}

uint64_t StripedChannel::Delivered() const {
  std::lock_guard<std::mutex> lock(mu_);
  return delivered_.AllTo();
}

// --- The ends of the rails ---

void RailEnd::OnConnected() {
  if (const auto owner = owner_.lock()) owner->OnRailConnected(this);
}
void RailEnd::OnNotify(const char* data, size_t length) {
  if (const auto owner = owner_.lock()) owner->OnRecord(this, {data, length});
}
void RailEnd::OnDelivered(uint64_t number) {
  if (const auto owner = owner_.lock()) owner->OnRailDelivered(this, number);
}
void RailEnd::OnTransfer(uint64_t cookie, const Status& status) {
  if (const auto owner = owner_.lock()) owner->OnPieceEnded(this, cookie, status);
}
void RailEnd::OnClosed(const Status& status) {
  if (const auto owner = owner_.lock()) owner->OnRailClosed(this, status);
}
void RailEnd::OnReleased() {
  if (const auto owner = owner_.lock()) owner->OnRailReleased(this);
}

}  // namespace rdma_transport::fabric::striped
