#include "fabric/combined.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/log.h"

namespace rdma_transport::fabric {
namespace {

constexpr Nanos kPast = 1;  // a deadline in the past: poll without waiting

// Before the name of a fabric: the IDs that are avoided on it.
constexpr char kAvoided[] = "!";

// An address is a sequence of (fabric name, address on that fabric), each prefixed with its length.
// Of several fabrics, (empty, ID of the process) follows, and those of which something is avoided.
void Append(std::string_view field, std::string* out) {
  out->push_back(static_cast<char>(field.size() & 0xff));
  out->push_back(static_cast<char>(field.size() >> 8));
  out->append(field);
}

bool TakeField(std::string_view* rest, std::string_view* field) {
  if (rest->size() < 2) return false;
  const size_t length = static_cast<uint8_t>((*rest)[0]) | size_t{static_cast<uint8_t>((*rest)[1])}
                                                               << 8;
  if (rest->size() - 2 < length) return false;
  *field = rest->substr(2, length);
  rest->remove_prefix(2 + length);
  return true;
}

struct Entry {
  std::string_view name;
  std::string_view address;
};

Status Split(std::string_view address, std::vector<Entry>* entries) {
  while (!address.empty()) {
    Entry entry;
    if (!TakeField(&address, &entry.name) || !TakeField(&address, &entry.address)) {
      return Status(Code::kInvalidArgument, "a malformed channel address");
    }
    entries->push_back(entry);
  }
  return OkStatus();
}

std::string_view Find(const std::vector<Entry>& entries, std::string_view name) {
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry.address;
  }
  return {};
}

Status NotConnected() { return Status(Code::kUnavailable, "the channel is not connected"); }

}  // namespace

// Stands before the handler of a channel. It calls the handler without a reference: who calls it
// has one, see CombinedDevice::Watch().
class Watcher final : public ChannelHandler {
 public:
  Watcher(Avoided* avoided, ChannelHandler* handler) : avoided_(avoided), handler_(handler) {}

  // Before Connect(). Only the active end counts: it learns whether its packets arrive.
  void Expect(size_t member, std::string name, std::string peer) {
    std::lock_guard<std::mutex> lock(mu_);
    member_ = member;
    name_ = std::move(name);
    peer_ = std::move(peer);
  }
  void OnClosing(const Status& reason) {
    if (reason.code() != Code::kDeadlineExceeded) closing_.store(true);
  }
  void OnFailed(const Status& reason) {
    std::lock_guard<std::mutex> lock(mu_);
    if (peer_.empty() || closing_.load() || !avoided_->OnFailed(member_, peer_, Now())) return;
    Log(LogLevel::kWarning, name_ + " does not connect to a peer that it should reach (" +
                                reason.message() + "): for some minutes it is not used for it");
  }

  void OnConnected() override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (!peer_.empty()) avoided_->OnConnected(member_, peer_);
      peer_.clear();
    }
    handler_->OnConnected();
  }
  void OnNotify(const char* data, size_t length) override { handler_->OnNotify(data, length); }
  void OnDelivered(uint64_t number) override {
    if (!closed_) handler_->OnDelivered(number);
  }
  void OnTransfer(uint64_t cookie, const Status& status) override {
    handler_->OnTransfer(cookie, status);
  }
  // Before Connect(), there is a channel of each member, and each of them ends.
  void OnClosed(const Status& status) override {
    if (std::exchange(closed_, true)) return;
    OnFailed(status);
    handler_->OnClosed(status);
  }
  void OnReleased() override {
    if (!std::exchange(released_, true)) handler_->OnReleased();
  }

 private:
  Avoided* const avoided_;
  ChannelHandler* const handler_;
  bool closed_ = false;    // told; the polling thread's
  bool released_ = false;  // the same
  std::mutex mu_;          // the channel may end while it begins to connect
  size_t member_ = 0;
  std::string name_;
  std::string peer_;  // empty: it does not matter what becomes of the channel
  std::atomic<bool> closing_{false};
};

// Has a channel of every member before Connect(), so that the peer can choose, and one afterwards.
class CombinedChannel final : public Channel {
 public:
  CombinedChannel(CombinedDevice* device, std::shared_ptr<Watcher> watcher, Avoided::Lists avoided,
                  std::vector<std::shared_ptr<Channel>> candidates)
      : device_(device),
        watcher_(std::move(watcher)),
        avoided_(std::move(avoided)),
        candidates_(std::move(candidates)) {}

  std::string Address() const override {
    std::string address;
    std::lock_guard<std::mutex> lock(mu_);
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i] == nullptr) continue;
      Append(device_->members_[i].name, &address);
      Append(candidates_[i]->Address(), &address);
    }
    address += refused_address_;
    if (watcher_ == nullptr) return address;
    Append("", &address);
    Append(device_->id_, &address);
    for (size_t i = 0; i < avoided_.size(); ++i) {
      if (avoided_[i].empty()) continue;
      Append(kAvoided + device_->members_[i].name, &address);
      Append(avoided_[i], &address);
    }
    return address;
  }

  Status Connect(std::string_view peer_address, Role role, const Terms& terms) override {
    CombinedDevice::Choice choice;
    RDMA_RETURN_IF_ERROR(device_->Choose(peer_address, avoided_, &choice));
    std::vector<std::shared_ptr<Channel>> others(candidates_.size());
    std::shared_ptr<Channel> chosen;
    {
      std::lock_guard<std::mutex> lock(mu_);
      candidates_.swap(others);
      for (const size_t i : choice.refused) {
        if (others[i] == nullptr) continue;
        Append(device_->members_[i].name, &refused_address_);
        Append(others[i]->Address(), &refused_address_);
      }
      reasons_ = std::move(choice.reasons);
      chosen = candidates_[choice.member] = std::move(others[choice.member]);
    }
    if (chosen == nullptr)
      return Status(Code::kUnavailable, "that fabric could not open a channel");
    chosen_.store(chosen.get());
    const bool watched = watcher_ != nullptr && !choice.peer.empty();
    const std::string& name = device_->members_[choice.member].name;
    if (watched && role == Role::kActive) watcher_->Expect(choice.member, name, choice.peer);
    const Status status = chosen->Connect(choice.address, role, terms);
    if (!watched || status.code() != Code::kUnavailable) return status;
    watcher_->Expect(choice.member, name, choice.peer);
    watcher_->OnFailed(status);
    // Another fabric may do, later.
    return Status(Code::kFailedPrecondition, status.message());
  }

  const char* fabric() const override { return chosen() == nullptr ? "" : chosen()->fabric(); }
  std::string Route() const override {
    if (chosen() == nullptr) return "";
    std::lock_guard<std::mutex> lock(mu_);
    return chosen()->Route() + reasons_;
  }
  bool MapsPeer() const override { return chosen() != nullptr && chosen()->MapsPeer(); }
  bool Copies() const override { return chosen() != nullptr && chosen()->Copies(); }
  bool OutlivedByTransfers() const override {
    return chosen() != nullptr && chosen()->OutlivedByTransfers();
  }
  void Keep(OwnerRef memory) override {
    if (chosen() != nullptr) chosen()->Keep(std::move(memory));
  }
  Status Share(uint64_t key) override {
    return chosen() == nullptr ? NotConnected() : chosen()->Share(key);
  }
  bool Locate(const void* data, RemoteSpan* span) const override {
    return chosen() != nullptr && chosen()->Locate(data, span);
  }
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override {
    if (chosen() == nullptr) return NotConnected();
    return chosen()->Notify(parts, count, urgency, number, after);
  }
  uint64_t Delivered() const override { return chosen() == nullptr ? 0 : chosen()->Delivered(); }
  Backlog backlog() const override { return chosen() == nullptr ? Backlog() : chosen()->backlog(); }
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override {
    return chosen() == nullptr ? NotConnected() : chosen()->Read(source, destination, cookie);
  }
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override {
    return chosen() == nullptr ? NotConnected() : chosen()->Write(source, destination, cookie);
  }
  Status Flush() override { return chosen() == nullptr ? NotConnected() : chosen()->Flush(); }
  std::shared_ptr<RemoteRegion> Remote(uint64_t key) const override {
    return chosen() == nullptr ? nullptr : chosen()->Remote(key);
  }
  MappedSpan Map(const RemoteSpan& span) override {
    return chosen() == nullptr ? MappedSpan() : chosen()->Map(span);
  }
  std::shared_ptr<const void> Hold() const override {
    return chosen() == nullptr ? nullptr : chosen()->Hold();
  }
  bool Owns(const void* data, RemoteSpan* span) const override {
    return chosen() != nullptr && chosen()->Owns(data, span);
  }
  void Close(const Status& reason) override {
    if (watcher_ != nullptr) watcher_->OnClosing(reason);
    std::vector<std::shared_ptr<Channel>> open;
    {
      std::lock_guard<std::mutex> lock(mu_);
      open = candidates_;
    }
    for (const auto& channel : open) {
      if (channel != nullptr) channel->Close(reason);
    }
  }

 private:
  CombinedDevice* const device_;
  const std::shared_ptr<Watcher> watcher_;  // null: the device has one member
  const Avoided::Lists avoided_;            // as its address says
  Channel* chosen() const { return chosen_.load(std::memory_order_acquire); }

  mutable std::mutex mu_;
  std::vector<std::shared_ptr<Channel>> candidates_;  // by member
  // Of members that are better than the chosen one, but ruled out: the peer, too, finds out why.
  std::string refused_address_;
  std::string reasons_;
  std::atomic<Channel*> chosen_{nullptr};  // one of them; never changes once set
};

std::vector<PortReport> CombinedDevice::Ports() const {
  std::vector<PortReport> ports;
  for (const auto& member : members_) {
    for (PortReport& port : member.device->Ports()) ports.push_back(std::move(port));
  }
  return ports;
}

std::string CombinedDevice::Summary() const {
  std::string summary;
  for (const Member& member : members_) {
    summary += (summary.empty() ? "" : "; ") + member.device->Summary();
  }
  for (const Absent& absent : absent_) {
    summary += "; no " + absent.name + ": " + absent.reason.message();
  }
  return summary;
}

Status CombinedDevice::Choose(std::string_view address, const Avoided::Lists& avoided,
                              Choice* choice) const {
  std::vector<Entry> entries;
  RDMA_RETURN_IF_ERROR(Split(address, &entries));
  choice->peer = Find(entries, "");
  bool later = false;
  std::string reasons;
  auto add_reason = [&reasons](const std::string& name, const std::string& reason) {
    reasons += (reasons.empty() ? "" : "; ") + name + ": " + reason;
  };
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& candidate) {
      return candidate.name == members_[i].name;
    });
    const std::string peers(Find(entries, kAvoided + members_[i].name));
    if (Avoided::Has(avoided[i], choice->peer) || Avoided::Has(peers, id_)) {
      const std::string reason = "connections did not come up in the last minutes";
      later = true;
      add_reason(members_[i].name, reason);
      choice->reasons += "; not " + members_[i].name + ": " + reason;
      continue;
    }
    if (entry == entries.end()) {
      add_reason(members_[i].name, "the peer does not have it");
      continue;
    }
    const Status reaches = members_[i].device->Reaches(entry->address);
    if (reaches.ok()) {
      choice->member = i;
      choice->address = entry->address;
      return OkStatus();
    }
    add_reason(members_[i].name, reaches.message());
    if (reaches.code() == Code::kPermissionDenied) {
      choice->refused.push_back(i);
      choice->reasons += "; not " + members_[i].name + ": " + reaches.message();
    }
  }
  for (const Absent& absent : absent_) add_reason(absent.name, absent.reason.message());
  return Status(later ? Code::kFailedPrecondition : Code::kUnavailable,
                "no fabric reaches it (" + reasons + ")");
}

Status CombinedDevice::Reaches(std::string_view channel_address) const {
  Choice choice;
  return Choose(channel_address, AvoidedNow(), &choice);
}

Status CombinedDevice::Allocate(size_t length, Access access, void* place,
                                std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(members_.front().device->Allocate(length, access, place, region));
  for (size_t i = 1; i < members_.size(); ++i) {
    RDMA_RETURN_IF_ERROR(members_[i].device->Adopt(region->get()));
  }
  return OkStatus();
}

Status CombinedDevice::Adopt(Region* region) {
  for (const Member& member : members_) RDMA_RETURN_IF_ERROR(member.device->Adopt(region));
  return OkStatus();
}

bool CombinedDevice::Imports() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.device->Imports(); });
}

Status CombinedDevice::Import(const DeviceMemory& memory, Access access,
                              std::unique_ptr<Region>* region) {
  for (const Member& member : members_) {
    if (member.device->Imports()) return member.device->Import(memory, access, region);
  }
  return Device::Import(memory, access, region);
}

Status CombinedDevice::Open(std::weak_ptr<ChannelHandler> handler,
                            std::shared_ptr<Channel>* channel) {
  std::shared_ptr<Watcher> watcher;
  if (const auto watched = handler.lock(); watched != nullptr && members_.size() > 1) {
    watcher = Watch(watched);
    handler = std::shared_ptr<ChannelHandler>(watched, watcher.get());
  }
  std::vector<std::shared_ptr<Channel>> candidates(members_.size());
  Status refused;
  bool any = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Status opened = members_[i].device->Open(handler, &candidates[i]);
    if (opened.ok()) {
      any = true;
    } else if (refused.ok()) {
      refused = opened;
    }
  }
  if (!any) return refused;
  *channel = std::make_shared<CombinedChannel>(this, std::move(watcher), AvoidedNow(),
                                               std::move(candidates));
  return OkStatus();
}

// A watcher may be called as long as somebody can get a reference to the handler: the reference
// that members get is one to the handler, and points to the watcher.
std::shared_ptr<Watcher> CombinedDevice::Watch(const std::shared_ptr<ChannelHandler>& handler) {
  auto watcher = std::make_shared<Watcher>(&avoided_, handler.get());
  std::lock_guard<std::mutex> lock(watchers_mu_);
  watchers_.erase(std::remove_if(watchers_.begin(), watchers_.end(),
                                 [](const auto& watched) { return watched.first.expired(); }),
                  watchers_.end());
  watchers_.emplace_back(handler, watcher);
  return watcher;
}

int CombinedDevice::Poll() {
  int handled = 0;
  for (const Member& member : members_) handled += member.device->Poll();
  return handled;
}

bool CombinedDevice::ArmNotification() {
  bool quiet = true;
  for (const Member& member : members_) quiet = member.device->ArmNotification() && quiet;
  return quiet;
}

void CombinedDevice::Sleep(Nanos deadline) {
  if (members_.size() == 1) return members_.front().device->Sleep(deadline);
  std::vector<pollfd> descriptors;
  for (const Member& member : members_) {
    descriptors.push_back({member.device->WaitDescriptor(), POLLIN, 0});
  }
  if (poll(descriptors.data(), descriptors.size(), MillisecondsUntil(deadline)) <= 0) return;
  for (const Member& member : members_) member.device->Sleep(kPast);
}

}  // namespace rdma_transport::fabric
