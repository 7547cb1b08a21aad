#include "protocol/links.h"

#include <algorithm>
#include <utility>

namespace rdma_transport {
namespace {

// Limits what remote tasks may make this task hold; honest tasks stay far below.
constexpr size_t kMaxPendingLinks = 1024;
constexpr size_t kMaxLinksPerTask = 16;
constexpr size_t kMaxTasks = 16384;

Status RefuseForNow(const std::string& what) {
  return Status(Code::kResourceExhausted, "it has " + what + "; try again later");
}

}  // namespace

Links::Links(Runtime* runtime, LinkOwner* owner, const std::string& task)
    : runtime_(runtime),
      owner_(owner),
      task_(task),
      pairing_(task, runtime->settings().connect_timeout) {}

Traffic* Links::TrafficWith(const std::string& task) {
  std::lock_guard<std::mutex> lock(mu_);
  Traffic*& traffic = traffic_[task];
  if (traffic == nullptr) traffic = GlobalCounters().traffics.Make(task_, task);
  return traffic;
}

std::map<std::string, Traffic*> Links::Traffics() const {
  std::lock_guard<std::mutex> lock(mu_);
  return traffic_;
}

std::shared_ptr<Link> Links::Make(const std::string& task, Nanos deadline) {
  const LinkContext context = {runtime_->device(),        runtime_->arena(),     runtime_->slots(),
                               runtime_->receive_arena(), &runtime_->settings(), TrafficWith(task)};
  return std::make_shared<Link>(context, owner_, deadline);
}

Status Links::Connect(const std::shared_ptr<Link>& link, Identity remote, const std::string& key,
                      std::string_view address, fabric::Role role) {
  link->set_remote(std::move(remote));
  {
    std::lock_guard<std::mutex> lock(mu_);
    links_[link->channel()] = {link, role};
  }
  pairing_.OnConnect(*link);
  // The end of a write releases the source of a tensor, which nobody waits for.
  const Status connected = link->channel()->Connect(address, role, {key, fabric::WriteEnd::kLate});
  if (connected.ok()) {
    runtime_->ArmTimer();  // drops the link if it does not come up in time
  } else {
    std::lock_guard<std::mutex> lock(mu_);
    links_.erase(link->channel());
  }
  return connected;
}

void Links::Remove(const std::shared_ptr<Link>& link, const Status& reason) {
  pairing_.Remove(*link);
  std::lock_guard<std::mutex> lock(mu_);
  links_.erase(link->channel());
  if (reason.code() != Code::kUnavailable && link->InUse()) in_use_.push_back(link);
}

void Links::Release(const std::shared_ptr<Link>& link) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    in_use_.erase(std::remove(in_use_.begin(), in_use_.end(), link), in_use_.end());
  }
  link->ReleaseOutstanding();
}

Status Links::Admit(const std::string& task) {
  size_t pending = 0;
  List same;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (traffic_.size() >= kMaxTasks && traffic_.count(task) == 0) {
      return RefuseForNow("as many peers as it admits (" + std::to_string(kMaxTasks) + ")");
    }
    for (const auto& [channel, open] : links_) {
      if (open.role == fabric::Role::kActive) continue;
      if (!open.link->up()) ++pending;
      if (open.link->remote().task == task) same.push_back(open.link);
    }
  }
  if (pending >= kMaxPendingLinks) {
    return RefuseForNow(std::to_string(pending) + " connections that are not up yet");
  }
  if (same.size() < kMaxLinksPerTask) return OkStatus();
  // The links of a previous incarnation end when something is sent on them.
  for (const auto& link : same) {
    if (link->up()) link->Probe();
  }
  return RefuseForNow(std::to_string(same.size()) + " connections of " + task);
}

Links::List Links::All() const {
  List all;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [channel, open] : links_) all.push_back(open.link);
  return all;
}

Links::List Links::Up() const {
  List up;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [channel, open] : links_) {
    if (open.link->up()) up.push_back(open.link);
  }
  return up;
}

Links::List Links::UpTo(const std::string& task) const {
  List found;
  for (auto& link : Up()) {
    if (link->remote().task == task) found.push_back(std::move(link));
  }
  return found;
}

std::shared_ptr<Link> Links::Over(const fabric::Channel* channel) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = links_.find(channel);
  return found == links_.end() ? nullptr : found->second.link;
}

bool Links::AllUp(PeerId peer, const std::function<bool(const Link&)>& holds) const {
  std::lock_guard<std::mutex> lock(mu_);
  return std::all_of(links_.begin(), links_.end(), [&](const auto& entry) {
    const Link& link = *entry.second.link;
    return link.peer() != peer || !link.up() || holds(link);
  });
}

void Links::Probe(const std::string& task) const {
  for (const auto& link : UpTo(task)) link->Probe();
}

}  // namespace rdma_transport
