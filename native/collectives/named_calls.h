// Collectives that are matched by name. Members may start them in any order, another one on each,
// as the operations of a dataflow graph do.
//
// Members take part in rounds. In a round, each announces what it has started since the last one,
// so all members have the same table of what is waiting for whom. What all have announced they then
// carry out, in the order of that table. A member starts a round when it has something to announce,
// and joins one that another member has started. There is no coordinator and no cycle: an idle
// member sleeps.
//
// Small reductions that are ready at once are carried out as one. That changes no bits: elements
// are combined in the order of ranks, whatever else is reduced with them.
#pragma once

#include <memory>
#include <string>

#include "collectives/group.h"
#include "collectives/named_call.h"

namespace rdma_transport::collectives {

// One member's end of a group whose collectives are matched by name. Thread-safe. It has a thread,
// which takes part in what others start, and handles no signals.
//
// Errors, on all members alike: InvalidArgument, which names ranks and what differs, if members do
// not call the same under a name, or one uses a name twice at once; DeadlineExceeded after
// `stall_timeout`. The other calls go on. Any other error, such as the loss of a member, ends the
// group, and all calls with it.
class NamedCalls {
 public:
  // No one else may use the group.
  NamedCalls(std::unique_ptr<Group> group, NamedOptions options);
  ~NamedCalls();

  int rank() const;
  int size() const;
  // To share memory with the others, who read large arrays there where they lie. While it exists.
  Mesh* mesh() const;

  void Start(NamedCall call);
  // Ends all calls, and those that follow, with Cancelled. When it returns, no memory of them is
  // used. Not to be called by `done`.
  void Close(const std::string& reason);

  // The calls of this process by number, through which operations of TensorFlow find them.
  static void Publish(int number, std::shared_ptr<NamedCalls> calls);  // null removes it
  static std::shared_ptr<NamedCalls> Find(int number);                 // null: there are none

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rdma_transport::collectives
