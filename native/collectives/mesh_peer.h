// One end of a mesh: the channel to one other member.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/liveness.h"
#include "base/status.h"
#include "collectives/board.h"
#include "collectives/letter.h"
#include "collectives/mesh_state.h"
#include "collectives/note.h"
#include "collectives/replica.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

// Thread-safe. The channel calls it on the polling thread.
class MeshPeer final : public fabric::ChannelHandler {
 public:
  MeshPeer(int rank, std::shared_ptr<MeshState> state) : rank_(rank), state_(std::move(state)) {}

  // To be called once, before anything else.
  void SetChannel(std::shared_ptr<fabric::Channel> channel) { channel_ = std::move(channel); }
  fabric::Channel* channel() const { return channel_.get(); }

  Status Send(int tag, std::string_view bytes, const Patience& patience, bool waits);
  Status SendNote(const Note& note, std::string_view bytes = {});
  // Announces a step to a remote member. A lost one is no error.
  Status Announce(const Announcement& announcement, const Patience& patience);
  // Waits until the writes to a remote member from this part have ended.
  Status WaitWritten(size_t part, const Patience& patience);
  // Called about every kCheckInterval while a call waits for the member. Pings a remote one that is
  // silent, and closes the channel after the timeout.
  void CheckAlive();
  // Keeps this member's region until writes from it have ended, after the channel has closed.
  void KeepSource();
  // Returns whether the member has consumed all notifications.
  bool Drained() const { return delivered_.load() >= sent_.load(); }

  // The functions below require the lock of the state.
  bool ready() const { return memory_ != nullptr; }
  const char* memory() const { return memory_; }
  // Whether the member cannot map memory of this one. Constant once it is ready.
  bool remote() const { return mapped_.data == nullptr; }
  const Status& lost() const { return lost_; }
  // Returns null if the member has not shared it.
  const fabric::MappedSpan* FindShared(uint64_t key, uint64_t* length) const;

  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnDelivered(uint64_t number) override { delivered_.store(number); }
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;
  void OnReleased() override { released_.store(true); }

  // Whether the member may still write the replica of its memory.
  bool MayWrite() const { return replica_.memory() != nullptr && !released_.load(); }

 private:
  struct Shared {
    uint64_t length = 0;
    fabric::MappedSpan span;
  };
  void Sent(uint64_t number);
  Status LostOr(const Status& status) const;
  Status Handle(const Note& note, std::string_view bytes);
  Status HandleHello(const Note& note);
  Status HandleShare(const Note& note);
  Status HandleMessage(const Note& note, std::string_view bytes);
  void Lose(const Status& status);

  const int rank_;
  const std::shared_ptr<MeshState> state_;
  std::shared_ptr<fabric::Channel> channel_;
  std::mutex sending_;             // held while the parts of a message are sent
  std::atomic<uint64_t> sent_{0};  // numbers of notifications
  std::atomic<uint64_t> delivered_{0};

  std::atomic<bool> released_{false};
  std::atomic<bool> heard_{false};  // since the last CheckAlive()

  Status lost_;
  Liveness liveness_;
  Nanos checked_at_ = 0;
  const char* memory_ = nullptr;  // mapped, or the replica; set when the member is ready
  fabric::MappedSpan mapped_;
  Replica replica_;  // has rules of its own
  std::map<uint64_t, Shared> shared_;
  uint64_t unconsumed_ = 0;  // bytes of messages that the peer has not received

  // Used only by the polling thread.
  Letter incoming_;
  uint64_t expected_ = 0;  // bytes of `incoming_`
};

}  // namespace rdma_transport::collectives
