#include "protocol/pairing.h"

#include <algorithm>

#include "protocol/link.h"

namespace rdma_transport {
namespace {

constexpr size_t kMaxEnded = 256;

}  // namespace

// Without the links that are gone.
Pairing::Entries* Pairing::EntriesLocked(const std::string& task) {
  Entries& entries = entries_[task];
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [](const Entry& entry) { return entry.link.expired(); }),
                entries.end());
  return &entries;
}

// Adds nothing to the table: anyone may ask for any task.
Pairing::Entry* Pairing::FindLocked(const std::string& task, const std::string& id) {
  const auto found = entries_.find(task);
  if (found == entries_.end()) return nullptr;
  for (Entry& entry : found->second) {
    if (entry.id == id && !entry.link.expired()) return &entry;
  }
  return nullptr;
}

Pairing::Entry* Pairing::FindLocked(const Link& link) {
  Entry* const entry = FindLocked(link.remote().task, link.id());
  return entry != nullptr && entry->link.lock().get() == &link ? entry : nullptr;
}

bool Pairing::EndedLocked(const std::string& id) const {
  return std::find(ended_.begin(), ended_.end(), id) != ended_.end();
}

std::string Pairing::Request(const std::string& task, const std::shared_ptr<Link>& link,
                             bool insist) {
  std::lock_guard<std::mutex> lock(mu_);
  Entries* const entries = EntriesLocked(task);
  if (!insist) {
    // The last one: earlier ones may be of an incarnation that has ended.
    const auto last = std::find_if(entries->rbegin(), entries->rend(), [](const Entry& entry) {
      return entry.role == fabric::Role::kPassive;
    });
    if (last != entries->rend()) return last->id;
  }
  entries->push_back({link->id(), fabric::Role::kActive, link, 0, false, Now()});
  return std::string();
}

Pairing::Usable Pairing::Accept(const std::string& task, uint64_t incarnation,
                                const std::shared_ptr<Link>& link, bool insist) {
  std::lock_guard<std::mutex> lock(mu_);
  Entries* const entries = EntriesLocked(task);
  if (!insist && task_ < task) {
    for (const Entry& entry : *entries) {
      if (entry.role == fabric::Role::kPassive) continue;
      const bool wins = entry.incarnation == 0 ? Now() - entry.since < link_timeout_
                                               : entry.incarnation == incarnation;
      if (wins) return {entry.id, entry.up};
    }
  }
  if (link->id().size() == kIdBytes && FindLocked(task, link->id()) == nullptr) {
    entries->push_back({link->id(), fabric::Role::kPassive, link, incarnation, false, Now()});
  }
  return {};
}

Pairing::Usable Pairing::Confirm(const std::string& task, uint64_t incarnation,
                                 const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  const Entry* const entry = FindLocked(task, id);
  if (entry == nullptr || entry->role == fabric::Role::kPassive) return {};
  if (entry->incarnation != 0 && entry->incarnation != incarnation) return {};
  return {entry->id, entry->up};
}

Pairing::Incoming Pairing::Find(const std::string& task, const std::string& id,
                                std::shared_ptr<Link>* link) {
  std::lock_guard<std::mutex> lock(mu_);
  const Entry* const entry = FindLocked(task, id);
  if (entry == nullptr || entry->role == fabric::Role::kActive) {
    return EndedLocked(id) ? Incoming::kEnded : Incoming::kUnknown;
  }
  if (!entry->up) return Incoming::kComing;
  *link = entry->link.lock();
  return *link == nullptr ? Incoming::kEnded : Incoming::kUp;
}

void Pairing::OnConnect(const Link& link) {
  std::lock_guard<std::mutex> lock(mu_);
  Entry* const entry = FindLocked(link);
  if (entry != nullptr) entry->incarnation = link.remote().incarnation;
}

bool Pairing::OnUp(const Link& link) {
  std::lock_guard<std::mutex> lock(mu_);
  Entry* const entry = FindLocked(link);
  if (entry != nullptr) entry->up = true;
  return entry != nullptr;
}

void Pairing::Remove(const Link& link) {
  std::lock_guard<std::mutex> lock(mu_);
  const Entry* const entry = FindLocked(link);
  if (entry == nullptr) return;
  ended_.push_back(entry->id);
  if (ended_.size() > kMaxEnded) ended_.pop_front();
  Entries& entries = entries_[link.remote().task];
  entries.erase(entries.begin() + (entry - entries.data()));
}

}  // namespace rdma_transport
