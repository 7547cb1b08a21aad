// The thread of one member's named calls: it announces what was started, and carries out what all
// have called.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/named_call.h"
#include "collectives/named_execution.h"
#include "collectives/named_table.h"

namespace rdma_transport::collectives {

// Start() and Close() are thread-safe; the other functions are of its thread.
class NamedEngine {
 public:
  NamedEngine(std::unique_ptr<Group> group, NamedOptions options);
  ~NamedEngine() { Close("the named calls were dropped"); }

  Group* group() const { return group_.get(); }
  // Whether this is the process that made it, and not a forked child.
  bool Ours() const;
  void Start(NamedCall call);
  void Close(const std::string& reason);

 private:
  // What this member has called under a name.
  struct Waiting {
    std::deque<NamedCall> calls;  // several: the name was used while the first one waited
    size_t announced = 0;         // of the calls
    Nanos since = 0;
    bool warned = false;
    bool withdrawn = false;
  };

  void Loop();
  void TakeStarted();
  void Announce(NamedCall call);
  Status Round();
  Status Exchange();
  void EndWork(NamedWork* work);
  void EndJoin(int last);
  // Ends all calls, and those that follow.
  void EndAll(const Status& status);
  // Ends a call that was started.
  void Finish(NamedCall* call, const Status& status, const NamedResult& result);

  std::vector<NamedCall> TakeCall(const NamedMatch& match);
  Status EndOf(const Status& status);

  // Calls that wait for long (named_stalls.cc).
  void WatchFrom(Nanos since);
  void CheckStalls();
  bool RunStalls();
  Patience PatienceOfRun();
  Status LateStatus(const std::string& name, Nanos since, const std::vector<int>& missing) const;
  std::string RanksText(const std::vector<int>& ranks) const;
  std::string PendingText() const;

  const std::unique_ptr<Group> group_;
  const NamedOptions options_;
  const int owner_;  // process

  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<NamedCall> started_;
  // The calls under a name that have not ended, and whether there were two at once.
  struct Use {
    int calls = 0;
    bool twice = false;
  };
  std::unordered_map<NamedKey, Use, NamedKeyHash> in_use_;
  Status ended_;  // not OK: what later calls get
  bool ending_ = false;
  bool exited_ = false;
  std::atomic<bool> news_{false};
  std::thread thread_;
  std::mutex close_mu_;  // held by Close()

  NamedTable table_;
  NamedExecution execution_;
  std::unordered_map<NamedKey, Waiting, NamedKeyHash> waiting_;
  std::vector<NamedCall> joins_;    // at most one
  std::deque<NamedEntry> entries_;  // to be announced
  std::vector<char> own_;           // scratch of a round
  std::vector<char> all_;
  Nanos next_check_ = INT64_MAX;  // of CheckStalls()
  bool any_remote_ = false;
  Status failed_;

  const std::vector<NamedWork>* running_ = nullptr;  // what the round carries out
  // Of the collective that runs: when a member was last seen to move, and how far all were.
  Nanos moved_ = 0;
  std::pair<uint32_t, std::vector<int>> moved_to_;
  bool run_warned_ = false;
  Status stalled_;
};

}  // namespace rdma_transport::collectives
