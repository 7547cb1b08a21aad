// A group's connections: a channel to each other member, the memory that they share with this one,
// and messages between two members.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "collectives/board.h"
#include "collectives/letter.h"
#include "collectives/progress.h"
#include "collectives/remote_reads.h"
#include "collectives/replica.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

class MeshPeer;
class MessageRequest;
struct MeshState;

// Thread-safe. Another thread must poll the device. No call waits without a deadline.
class Mesh {
 public:
  // Opens `size` - 1 channels for the member `rank`. A remote member that is silent for
  // `peer_timeout` while a call waits for it is lost. Returns InvalidArgument if `rank` and `size`
  // are not such numbers, or the device's errors.
  static Status Open(std::shared_ptr<fabric::Device> device, int rank, int size, Nanos peer_timeout,
                     std::unique_ptr<Mesh>* mesh);
  // Lets threads that wait for messages, or for remote members, poll the device; see MeshState.
  // Call it before Connect().
  void PollWhileWaiting(Progress::Helper helper);
  // What PollWhileWaiting() has set; may be null.
  const Progress::Helper& helper() const;
  // Closes the channels. No call may be in progress.
  ~Mesh();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::shared_ptr<fabric::Device>& device() const { return device_; }

  // Returns the address that member `peer` passes to its Connect(); empty for this member.
  std::string Address(int peer) const;
  // Starts to connect to a member, by the address that it has for this one. Of two members, the one
  // of the higher rank must call it first. `key` is that of fabric::Terms; may be empty.
  Status Connect(int peer, const std::string& address, const std::string& key);
  // What messages call the ranks, if these are not known by their own numbers.
  void NameRanks(std::vector<int> names);
  // Waits until this member has mapped the memory of all others, or a replica of it.
  Status WaitReady(const Patience& patience);

  // The memory of a member, of kRegionBytes. Valid after WaitReady(), while the mesh exists.
  char* own() const;
  const char* memory(int peer) const;
  // Whether a member is reached by a fabric that cannot map memory. It reads a replica of this
  // member's memory, and what is written is announced to it by Announce().
  bool Remote(int peer) const;
  Status Announce(int peer, const Announcement& announcement, const Patience& patience) const;
  // Waits until no remote member is being sent this part of own().
  Status WaitWritten(size_t part, const Patience& patience) const;
  // Returns OK while a member is connected; Unavailable, with its rank and the reason, afterwards.
  Status Lost(int peer) const;
  // The same, for a call that waits for the member: to be called about every kCheckInterval, so
  // that a silent one is found.
  Status CheckLost(int peer) const;
  // Calls `hook` on the polling thread when a member is lost. Null removes it, and
  // waits until it does not run.
  void WhenLost(std::function<void()> hook);

  // Shares a region of the device, of `length` bytes, with all members that are not remote, until
  // Withdraw(). If it is `writable` by peers, remote members may write there until it ends. Returns
  // the first error, such as that of a lost member, after all have been tried.
  Status Share(uint64_t key, uint64_t length, bool writable = false);
  void Withdraw(uint64_t key);
  // If `length` bytes at `data` lie in such a region, sets `span` to the rest of it from there and
  // returns true. `placed`: and if all remote members may write there.
  bool FindShared(const void* data, size_t length, fabric::RemoteSpan* span,
                  bool placed = false) const;
  // Keeps the arrays of a call in which remote members write. They write until the call has ended
  // well, or until this mesh lets them go. Null: it has ended.
  void KeepArrays(std::shared_ptr<const void> arrays);
  // Waits for memory that a member has shared, and maps it read-only. Returns DataLoss if
  // the span lies outside of it.
  Status Map(int peer, const fabric::RemoteSpan& span, const Patience& patience,
             fabric::MappedSpan* mapped) const;

  // Lets remote members Read() a region of the device, until it ends. Returns the first error.
  Status ShareWithRemote(uint64_t key);
  // Starts to read memory that a remote member has shared with these: no processor there takes
  // part, unless the fabric has no card. `destination` lies in a region of the device that `reads`
  // owns. An error of the read itself ends up there: InvalidArgument, if the member has not shared
  // the span, or its share has not arrived here.
  Status Read(int peer, const fabric::RemoteSpan& source, char* destination,
              const std::shared_ptr<RemoteReads>& reads) const;
  // Waits until all have ended, and returns their first error, or that of the wait.
  Status WaitRead(const RemoteReads& reads, const Patience& patience) const;

  // Starts to send a message. Sets `request` if it still uses the bytes, null otherwise. `waits`:
  // the caller waits for it, so it uses them only while the receiver has not received
  // kMaxUnconsumed bytes. Otherwise larger messages may need them until they are received.
  Status Send(int peer, int tag, std::string_view bytes, bool waits,
              std::shared_ptr<MessageRequest>* request);
  // Posts a receive of a message from `source` with `tag`, each of which may be kAny, into memory
  // of `capacity` bytes, which must stay valid until it is done, or memory of its own if that is
  // null. Messages with the same source and tag arrive in order. Ends with InvalidArgument if the
  // message is longer; the message is lost then.
  Status Receive(int source, int tag, char* buffer, uint64_t capacity,
                 std::shared_ptr<MessageRequest>* request);
  // Looks for the message that such a receive would get, and waits for it if `patience` is not
  // null. Sets `found`. Returns an error if there is none and none can come.
  Status Probe(int source, int tag, const Patience* patience, bool* found, Envelope* envelope);

  // Announces that this member sends no more, and waits until the other members have received all
  // notifications and copied all messages, except for lost members. Returns DeadlineExceeded if
  // they receive nothing for `peer_timeout`.
  Status Drain(bool (*interrupted)()) const;
  // Closes the channels, and sends the reason to all members.
  void Close(const std::string& reason);

 private:
  Mesh(std::shared_ptr<fabric::Device> device, int rank, int size);

  const std::shared_ptr<fabric::Device> device_;
  const int rank_;
  const int size_;
  const std::shared_ptr<MeshState> state_;
  std::vector<std::shared_ptr<MeshPeer>> peers_;  // null for this member
};

}  // namespace rdma_transport::collectives
