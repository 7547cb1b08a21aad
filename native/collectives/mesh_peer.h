// One end of a mesh: the channel to one other member.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "collectives/board.h"
#include "collectives/letter.h"
#include "collectives/progress.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

// What the ends of a mesh share. Outlives the mesh while a callback runs.
struct MeshState {
  mutable std::mutex
      mu;  // not held in calls of channels; guards the peers' fields, too, but not the hook
  mutable std::condition_variable changed;
  uint64_t key = 0;                     // of this member's own region
  std::map<uint64_t, uint64_t> shared;  // keys and lengths of this member's other regions
  std::deque<Letter> letters;

  std::mutex hook_mu;  // held while the hook runs; taken without `mu`
  std::function<void()> lost_hook;

  // Waits until `done` returns true. Called with the lock, which is released while it waits.
  Status Wait(std::unique_lock<std::mutex>* lock, const Patience& patience,
              const std::function<bool()>& done, const char* what) const;
};

// The notifications between two members. Sent in the memory layout of this host.
struct Note {
  enum Kind : uint32_t {
    kHello = 1,  // `key`: the sender's own region
    kShare,      // `key`, `length`: one more region
    kWithdraw,   // `key`: no longer
    kMessage,    // `tag`, `length`: of a message, whose first bytes follow
    kMore,       // its next bytes follow
    kConsumed,   // `length`: of a message that has been received
  };
  uint32_t kind = 0;
  int32_t tag = 0;
  uint64_t key = 0;
  uint64_t length = 0;
};

// Thread-safe. The channel calls it on the polling thread.
class MeshPeer final : public fabric::ChannelHandler {
 public:
  MeshPeer(int rank, std::shared_ptr<MeshState> state) : rank_(rank), state_(std::move(state)) {}

  // To be called once, before anything else.
  void SetChannel(std::shared_ptr<fabric::Channel> channel) { channel_ = std::move(channel); }
  fabric::Channel* channel() const { return channel_.get(); }

  Status Send(int tag, std::string_view bytes, const Patience& patience, bool waits);
  Status SendNote(const Note& note, std::string_view bytes = {});

  // The functions below require the lock of the state.
  bool ready() const { return memory_.data != nullptr; }
  const char* memory() const { return memory_.data; }
  const Status& lost() const { return lost_; }
  // Returns null if the member has not shared it.
  const fabric::MappedSpan* FindShared(uint64_t key, uint64_t* length) const;

  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnTransfer(uint64_t /*cookie*/, const Status& /*status*/) override {}
  void OnClosed(const Status& status) override;

 private:
  struct Shared {
    uint64_t length = 0;
    fabric::MappedSpan span;
  };
  Status Handle(const Note& note, std::string_view bytes);
  Status HandleHello(const Note& note);
  Status HandleShare(const Note& note);
  Status HandleMessage(const Note& note, std::string_view bytes);
  void Lose(const Status& status);

  const int rank_;
  const std::shared_ptr<MeshState> state_;
  std::shared_ptr<fabric::Channel> channel_;
  std::mutex sending_;  // held while the parts of a message are sent

  Status lost_;
  fabric::MappedSpan memory_;
  std::map<uint64_t, Shared> shared_;
  uint64_t unconsumed_ = 0;  // bytes of messages that the peer has not received

  // Used only by the polling thread.
  Letter incoming_;
  uint64_t expected_ = 0;  // bytes of `incoming_`
};

}  // namespace rdma_transport::collectives
