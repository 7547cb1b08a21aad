// The open channels of a device, and the polling thread's copy of them, which it reads without a
// lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rdma_transport::fabric::host {

// `Kept` is a std::weak_ptr or a std::shared_ptr of channels, and so is `Copied`, for the copy: as
// weak pointers, they keep no channel alive. Of a channel that ends, nobody sees more than the
// copy of before, which keeps it until the next Refresh().
//
// Add(), Remove() and the constant functions but copy() are thread-safe. The others are for the
// polling thread.
template <typename Key, typename Kept,
          typename Copied = std::shared_ptr<typename Kept::element_type>>
class ChannelTable {
 public:
  using Channel = typename Kept::element_type;
  using Pointer = std::shared_ptr<Channel>;

  // Calls `changed`, if there is one, whenever the copy has changed.
  explicit ChannelTable(std::function<void()> changed = nullptr) : changed_(std::move(changed)) {}

  // Returns false if another channel has this key.
  bool Add(Key key, const Pointer& channel) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto [place, added] = channels_.try_emplace(key, channel);
    if (!added && Lock(place->second) != nullptr) return false;
    place->second = channel;
    ++version_;
    return true;
  }
  void Remove(Key key) {
    Kept removed;  // may end here, without the lock
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = channels_.find(key);
    if (found == channels_.end()) return;
    removed = std::move(found->second);
    channels_.erase(found);
    ++version_;
  }
  std::vector<Pointer> All() const {
    std::vector<Pointer> all;
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [key, kept] : channels_) {
      if (Pointer channel = Lock(kept)) all.push_back(std::move(channel));
    }
    return all;
  }
  size_t size() const {  // may count some that have ended
    std::lock_guard<std::mutex> lock(mu_);
    return channels_.size();
  }
  // Returns whether Refresh() would change the copy.
  bool stale() const { return version_.load() != copied_version_; }

  void Refresh() {
    if (!stale()) return;
    std::vector<Pointer> channels;
    by_key_.clear();
    {
      std::lock_guard<std::mutex> lock(mu_);
      copied_version_ = version_.load();
      for (auto at = channels_.begin(); at != channels_.end();) {
        if (Pointer channel = Lock(at->second)) {
          by_key_[at->first] = channel.get();
          channels.push_back(std::move(channel));
          ++at;
        } else {
          at = channels_.erase(at);
        }
      }
    }
    std::vector<Copied> copy(channels.begin(), channels.end());
    copy_.swap(copy);  // what only the one before has kept ends below, without the lock
    if (changed_ != nullptr) changed_();
  }
  const std::vector<Copied>& copy() const { return copy_; }
  // Returns null if the copy does not have the channel.
  Channel* Known(Key key) const {
    static_assert(std::is_same_v<Copied, Pointer>, "the copy does not keep the channel");
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second;
  }
  // Returns also a channel that is newer than the copy.
  Channel* Find(Key key) {
    Channel* known = Known(key);
    if (known != nullptr || !stale()) return known;
    Refresh();
    return Known(key);
  }
  // Calls `look` for the next channels of the copy, at most so many: each gets its turn.
  template <typename Look>
  void LookAtNext(size_t most, Look look) {
    for (most = std::min(most, copy_.size()); most > 0; --most) {
      next_ = (next_ + 1) % copy_.size();
      look(copy_[next_]);
    }
  }
  // Lets go of all channels.
  void Clear() {
    std::map<Key, Kept> channels;  // end after the copy
    {
      std::lock_guard<std::mutex> lock(mu_);
      channels.swap(channels_);
      ++version_;
    }
    Refresh();
  }

 private:
  static Pointer Lock(const std::weak_ptr<Channel>& kept) { return kept.lock(); }
  static Pointer Lock(const Pointer& kept) { return kept; }

  const std::function<void()> changed_;
  mutable std::mutex mu_;
  std::map<Key, Kept> channels_;
  std::atomic<uint64_t> version_{1};
  // The polling thread's.
  uint64_t copied_version_ = 0;
  std::vector<Copied> copy_;
  std::unordered_map<Key, Channel*> by_key_;
  size_t next_ = 0;
};

}  // namespace rdma_transport::fabric::host
