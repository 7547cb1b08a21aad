// Ways to peers that do not work although the addresses look right: a firewall drops UDP port 4791,
// or a VLAN is wrong. Addresses travel by other means, so only the attempt to connect shows it.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace rdma_transport::fabric {

// What one process remembers for a while: fabrics by their number, peers by the random ID of their
// process, so that nothing is held against the next one. Thread-safe.
class Avoided {
 public:
  static constexpr size_t kIdLength = 8;
  // For each fabric, the IDs of those not reached by it, one after the other.
  using Lists = std::vector<std::string>;

  // Channels did not come up. The second time in a row, the peer is avoided on that fabric. Returns
  // whether that is so now.
  bool OnFailed(size_t fabric, const std::string& peer, Nanos now);
  void OnConnected(size_t fabric, const std::string& peer);

  Lists List(size_t fabrics, Nanos now) const;
  static bool Has(const std::string& list, const std::string& peer);

 private:
  struct Failures {
    int count = 0;
    Nanos until = 0;
  };

  mutable std::mutex mu_;
  std::map<std::pair<size_t, std::string>, Failures> failures_;
};

}  // namespace rdma_transport::fabric
