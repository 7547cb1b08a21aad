// Runs a group's collectives in the order in which they were started, blocking ones on the caller's
// thread and non-blocking ones on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "collectives/group.h"

namespace rdma_transport::collectives {

// A non-blocking collective. Thread-safe.
class Request {
 public:
  bool done() const;
  // Waits until the collective has ended, and returns its status; DeadlineExceeded or Cancelled if
  // the wait ends first, which sets `*waits` to true.
  Status Wait(const Patience& patience, bool* waits) const;

 private:
  friend class CallQueue;
  void End(const Status& status);

  mutable std::mutex mu_;
  mutable std::condition_variable ended_;
  bool done_ = false;
  Status status_;
};

// Thread-safe. The thread starts with the first non-blocking collective, and handles no signals.
class CallQueue {
 public:
  explicit CallQueue(std::unique_ptr<Group> group) : group_(std::move(group)) {}
  ~CallQueue() { Close("the communicator was closed"); }

  // Closes the mesh, and ends the pending collectives, with errors. When it returns, the queue uses
  // no arrays of collectives that were started. To be called by one thread at a time.
  void Close(const std::string& reason);

  Group* group() const { return group_.get(); }
  // Gives up the group before anything was started. The queue is of no use afterwards.
  std::unique_ptr<Group> TakeGroup() { return std::move(group_); }
  Mesh* mesh() const { return group_->mesh(); }

  // Runs a collective after all that were started before.
  Status Run(const Call& call, const Patience& patience);
  // Starts a collective. The arrays must stay valid until it has ended. A collective that does not
  // end before `deadline` ends the group. After Close(), it has ended at once.
  std::shared_ptr<Request> Start(const Call& call, Nanos deadline);

 private:
  struct Pending {
    Call call;
    Nanos deadline;
    std::shared_ptr<Request> request;
  };
  void Loop();

  std::unique_ptr<Group> group_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;  // the first is running
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace rdma_transport::collectives
