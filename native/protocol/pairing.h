// Makes two tasks that need each other share one link. Otherwise each of them would request one.
//
// A task never sends on a link only because its other end claims a name. It sends on a link that it
// requested itself, from the address that the cluster gives for the peer, or on one that the task
// at this address confirms as its own. Links are named by random IDs, which their requests carry:
//
//   offer   A task that needs a link to a peer, and has one that came from there, or is to come,
//           asks the peer, at its address, whether that link is the peer's own. If not, the task
//           requests a link.
//   tie     Requests may cross. Then the task with the lower name replies that its own link is
//           coming, with the ID, and the other task waits for that link instead.
//   insist  If the link that a task waits for does not come, or ends, the task requests one, which
//           is then not refused for a tie. So two links are possible, but nobody waits for long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"

namespace rdma_transport {

class Link;

// The links of one task that it may share with their other ends. Thread-safe. Keeps no link alive:
// a link that is gone, or that Remove() was called for, is not in the table.
class Pairing {
 public:
  static constexpr size_t kIdBytes = 16;

  // A link that this task requested, and that the other task may use instead of one of its own.
  struct Usable {
    std::string id;   // empty: none
    bool up = false;  // here, so it is, or was, in the other task's table
  };
  // A link that another task requested.
  enum class Incoming {
    kUnknown,  // its request has not arrived
    kComing,   // it is not up yet
    kUp,       // it may be used
    kEnded,
  };

  // `task` is this task.
  Pairing(std::string task, Nanos connect_timeout)
      : task_(std::move(task)), link_timeout_(connect_timeout / 8) {}

  // How long a task waits for a link that another task has requested. A request that has had no
  // reply for so long wins no tie.
  Nanos link_timeout() const { return link_timeout_; }

  // This task needs a link to `task`. Returns the ID of a link to offer. If there is none, or with
  // `insist`, records `link`, which this task now requests, and returns an empty ID.
  std::string Request(const std::string& task, const std::shared_ptr<Link>& link, bool insist);
  // This incarnation of `task` requests `link`. Returns a link of this task that wins the tie;
  // otherwise records `link`. A link with an invalid or known ID is not recorded, and not shared.
  Usable Accept(const std::string& task, uint64_t incarnation, const std::shared_ptr<Link>& link,
                bool insist);
  // This incarnation of `task` offers the link with that ID. Returns it if this task requested it.
  Usable Confirm(const std::string& task, uint64_t incarnation, const std::string& id);
  // Looks for a link that `task` requested. Sets `link` if it is up.
  Incoming Find(const std::string& task, const std::string& id, std::shared_ptr<Link>* link);

  // The link begins to connect; its identity is complete.
  void OnConnect(const Link& link);
  // The link may be used from now on. Returns whether it is in the table.
  bool OnUp(const Link& link);
  void Remove(const Link& link);

 private:
  struct Entry {
    std::string id;
    fabric::Role role;
    std::weak_ptr<Link> link;
    uint64_t incarnation = 0;  // of the other task; 0 while its reply is awaited
    bool up = false;
    Nanos since = 0;
  };
  using Entries = std::vector<Entry>;

  Entries* EntriesLocked(const std::string& task);
  Entry* FindLocked(const std::string& task, const std::string& id);
  Entry* FindLocked(const Link& link);
  bool EndedLocked(const std::string& id) const;

  const std::string task_;
  const Nanos link_timeout_;
  std::mutex mu_;
  std::map<std::string, Entries> entries_;  // by the other task, in the order in which they came
  std::deque<std::string> ended_;           // the last IDs of links that ended
};

}  // namespace rdma_transport
