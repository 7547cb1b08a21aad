// Messages between two members of a group, as the receiver sees them.
//
// A receive is posted first or its message arrives first. Posted receives and messages that nobody
// has asked for wait in two queues, in order, and are matched as MPI does it: of the receives that
// match a message, the one that was posted first gets it, and of the messages that match a receive,
// the one that arrived first.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "base/status.h"
#include "collectives/note.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

constexpr int kAny = -1;  // any rank, or any tag

struct Envelope {
  int source = 0;
  int tag = 0;
  uint64_t length = 0;  // in bytes
};

// A send or a receive. Guarded by the lock of the mesh's state, except for the bytes.
struct MessageCall {
  virtual ~MessageCall() = default;

  int peer = 0;  // may be kAny
  bool done = false;
  Status status;
};

// The memory must stay valid until the receive is done.
struct Receive : MessageCall {
  int tag = 0;             // may be kAny
  char* buffer = nullptr;  // null: `owned` is allocated when the message is known
  uint64_t capacity = 0;
  std::unique_ptr<char[]> owned;
  Envelope message;  // once one has matched

  bool Matches(const Envelope& envelope) const {
    return (peer == kAny || peer == envelope.source) && (tag == kAny || tag == envelope.tag);
  }
};

// A piece that the sender has announced.
struct LetterPart {
  Piece piece;
  fabric::MappedSpan span;  // null where memory cannot be mapped
};

// A message that has not been received. Guarded as Receive.
struct Letter {
  Envelope envelope;
  uint64_t id = 0;                   // of the sender
  std::shared_ptr<Receive> receive;  // null: not matched
  std::unique_ptr<char[]> held;      // a copy of the message, which no receive has asked for
  char* target = nullptr;            // where the pieces go; null: nowhere
  bool accepted = false;             // `target` is valid
  std::vector<LetterPart> parts;     // that wait for `target`
  uint64_t announced = 0;            // bytes
  uint64_t missing = 0;              // bytes
  int copying = 0;                   // pieces that are being copied to `target`
  bool in_place = false;             // pieces lie in memory that may go before they are copied
  bool asked = false;                // the sender knows that the message has a receive
  bool failed = false;               // the sender was lost before it had announced everything
};

// The two queues. Not thread-safe.
class Inbox {
 public:
  // Removes and returns the first posted receive that matches; null if there is none.
  std::shared_ptr<Receive> TakeReceive(const Envelope& envelope);
  // Returns the first message that matches; null if there is none.
  std::shared_ptr<Letter> Find(int source, int tag) const;
  std::shared_ptr<Letter> Take(int source, int tag);

  std::list<std::shared_ptr<Receive>> receives;
  std::list<std::shared_ptr<Letter>> letters;
};

// The bytes of messages that the receiver has to keep, or the sender for it, at most. A sender
// waits then.
constexpr uint64_t kMaxUnconsumed = uint64_t{64} << 20;
// What a message that comes with its bytes counts for.
constexpr uint64_t CostOf(uint64_t length) { return length + sizeof(Letter); }

// Matches the two: sets where the message goes. A message that is too long goes nowhere.
void Match(Letter* letter, const std::shared_ptr<Receive>& receive);
// Allocates memory for `length` bytes; null if there is none.
std::unique_ptr<char[]> AllocateBytes(uint64_t length);

}  // namespace rdma_transport::collectives
