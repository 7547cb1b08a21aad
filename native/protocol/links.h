// The links of one task, and the counters of what went over them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/link.h"
#include "protocol/pairing.h"
#include "protocol/runtime.h"

namespace rdma_transport {

// Thread-safe. Must not outlive its runtime and the owner of its links.
class Links {
 public:
  using List = std::vector<std::shared_ptr<Link>>;

  // `task` is this task.
  Links(Runtime* runtime, LinkOwner* owner, const std::string& task);

  // Returns the counters for a remote task. They live as long as the process.
  Traffic* TrafficWith(const std::string& task);
  // Returns the counters for all remote tasks, by task.
  std::map<std::string, Traffic*> Traffics() const;

  // Returns a link to the remote task that is neither open nor in this table. It must come up
  // before `deadline`. Requires a fabric.
  std::shared_ptr<Link> Make(const std::string& task, Nanos deadline);
  // Adds an open link and starts to connect it to the channel `address` of `remote`; see
  // fabric::Channel. The role tells which task requested the link. If it fails, the link is not in
  // this table. Otherwise LinkOwner::OnLinkUp() or OnLinkDown() follows.
  Status Connect(const std::shared_ptr<Link>& link, Identity remote, const std::string& key,
                 std::string_view address, fabric::Role role);
  // Removes the link. Keeps it alive until Release() if a peer that is alive may still use memory
  // here: destroying the link would free that memory. Polling thread only.
  void Remove(const std::shared_ptr<Link>& link, const Status& reason);
  void Release(const std::shared_ptr<Link>& link);
  // Returns ResourceExhausted if the remote task may not open one more link now. Probes the links
  // that it has if there are too many.
  Status Admit(const std::string& task);

  // How two tasks share a link. This table reports the beginning and the end of links to it.
  Pairing& pairing() { return pairing_; }

  List All() const;
  // Returns the links that are up: all, or those to a remote task.
  List Up() const;
  List UpTo(const std::string& task) const;
  // Returns the link over this channel, or null.
  std::shared_ptr<Link> Over(const fabric::Channel* channel) const;
  // Returns whether `holds` is true of every link to that peer that is up. `holds` is called with a
  // lock held and must not call this table.
  bool AllUp(PeerId peer, const std::function<bool(const Link&)>& holds) const;
  // Probes the links to all incarnations of a remote task, so that those that broke unnoticed end.
  void Probe(const std::string& task) const;

 private:
  Runtime* const runtime_;
  LinkOwner* const owner_;
  const std::string task_;
  Pairing pairing_;

  mutable std::mutex mu_;
  std::map<std::string, Traffic*> traffic_;
  struct Open {
    std::shared_ptr<Link> link;
    fabric::Role role;
  };
  std::map<const fabric::Channel*, Open> links_;
  // Closed links whose peers may still read and write here, until Release().
  std::vector<std::shared_ptr<Link>> in_use_;
};

}  // namespace rdma_transport
