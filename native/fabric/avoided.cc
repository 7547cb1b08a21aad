#include "fabric/avoided.h"

namespace rdma_transport::fabric {
namespace {

// One may have been closed on purpose by the peer, which looks the same.
constexpr int kEnough = 2;
constexpr Nanos kAvoidedFor = 5 * 60 * kSecond;
// With more of them, the fabric is at fault, and no peer is tried by it.
constexpr size_t kMostNamed = 32;

std::string Everyone() { return std::string(Avoided::kIdLength, '\0'); }

}  // namespace

bool Avoided::OnFailed(size_t fabric, const std::string& peer, Nanos now) {
  std::lock_guard<std::mutex> lock(mu_);
  for (auto it = failures_.begin(); it != failures_.end();) {
    it = it->second.until < now ? failures_.erase(it) : std::next(it);
  }
  Failures& failures = failures_[{fabric, peer}];
  failures.until = now + kAvoidedFor;
  return ++failures.count >= kEnough;
}

void Avoided::OnConnected(size_t fabric, const std::string& peer) {
  std::lock_guard<std::mutex> lock(mu_);
  failures_.erase({fabric, peer});
}

Avoided::Lists Avoided::List(size_t fabrics, Nanos now) const {
  Lists lists(fabrics);
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [key, failures] : failures_) {
    if (failures.count >= kEnough && now <= failures.until) lists[key.first] += key.second;
  }
  for (std::string& list : lists) {
    if (list.size() > kMostNamed * kIdLength) list = Everyone();
  }
  return lists;
}

bool Avoided::Has(const std::string& list, const std::string& peer) {
  for (size_t i = 0; i + kIdLength <= list.size(); i += kIdLength) {
    const std::string one = list.substr(i, kIdLength);
    if (one == peer || one == Everyone()) return true;
  }
  return false;
}

}  // namespace rdma_transport::fabric
