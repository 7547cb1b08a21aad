// One end of a mesh: the channel to one other member.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/liveness.h"
#include "base/status.h"
#include "collectives/board.h"
#include "collectives/letter.h"
#include "collectives/mesh_pool.h"
#include "collectives/mesh_seal.h"
#include "collectives/mesh_state.h"
#include "collectives/note.h"
#include "collectives/remote_reads.h"
#include "collectives/replica.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

// A message that is sent by pieces. Each is copied to a block, which is free again when the
// receiver has taken the piece, or the receiver takes it from where it lies. Done when the bytes
// are not needed any more. Guarded by the lock of the state, except for the bytes.
struct Sending : MessageCall {
  struct Staged {
    Block block;          // null: the piece lies where it was
    bool wanted = false;  // which limit a block counts for
    uint64_t length = 0;  // bytes of the message
    uint64_t announced = 0;
    uint64_t taken = 0;
  };
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  uint64_t id = 0;
  std::string_view bytes;             // must stay valid until it is done
  std::vector<Range> rest;            // that no thread has begun to announce
  int copying = 0;                    // pieces that a thread is announcing
  size_t lying = 0;                   // pieces that lie where they were
  bool waits = false;                 // as many bytes as possible are copied early
  bool in_place = false;              // the receiver can read pieces where they lie
  bool open = false;                  // the receiver knows of it
  bool wanted = false;                // it has a receive
  std::map<uint64_t, Staged> staged;  // by offset; not taken
};

// Thread-safe. The channel calls it on the polling thread.
class MeshPeer final : public fabric::ChannelHandler, public Watched {
 public:
  MeshPeer(int rank, std::shared_ptr<MeshState> state) : rank_(rank), state_(std::move(state)) {}

  // To be called once, before anything else.
  void SetChannel(std::shared_ptr<fabric::Channel> channel) { channel_ = std::move(channel); }
  fabric::Channel* channel() const { return channel_.get(); }

  // Sends a message, or starts to, and sets `call` if the bytes are still in use. Never blocks.
  // `waits`: the caller waits for it, so as much as possible is copied.
  Status Send(int tag, std::string_view bytes, bool waits, std::shared_ptr<MessageCall>* call);
  // Copies a message that has just been matched, or as much of it as has arrived.
  void Take(const std::shared_ptr<Letter>& letter);
  // A message of this length that came with its bytes has been received.
  void Consumed(uint64_t bytes);
  Status SendNote(const Note& note, std::string_view bytes = {},
                  fabric::Urgency urgency = fabric::Urgency::kWake);
  // Announces a step to a remote member. A lost one is no error.
  Status Announce(const Announcement& announcement, const Patience& patience);
  // Waits until the writes to a remote member from this part have ended.
  Status WaitWritten(size_t part, const Patience& patience);
  // See Mesh::Read().
  Status Read(const fabric::RemoteSpan& source, char* destination,
              const std::shared_ptr<RemoteReads>& reads);
  void CheckAlive() override;
  // Keeps what this member writes from until that has ended, after the channel has closed.
  void KeepSource();
  // Lets the member copy the messages that it has not received. This one sends no more.
  void Leave();
  // Returns whether the member has consumed all notifications, and taken all messages. Adds what it
  // has taken to `taken`.
  bool Drained(uint64_t* taken) const;
  // Ends the calls that wait for the member, which is lost for this reason.
  void Lose(const Status& status);

  // The functions below require the lock of the state.
  bool ready() const { return memory_ != nullptr; }
  const char* memory() const { return memory_; }
  // Whether the member cannot map memory of this one. Constant once it is ready.
  bool remote() const { return mapped_.data == nullptr; }
  const Status& lost() const { return state_->absent[rank_].lost; }
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
  Status Malformed() const;
  Status Handle(const Note& note, std::string_view bytes);
  Status HandleHello(const Note& note, std::string_view bytes);
  Status HandleShare(const Note& note);

  // Receives (mesh_peer_receive.cc).
  // The same, called with the lock of the state.
  void Take(const std::shared_ptr<Letter>& letter, std::unique_lock<std::mutex> lock);
  Status HandleMessage(const Note& note, std::string_view bytes);
  Status HandlePiece(std::string_view bytes);
  Status HandleLeaving();
  void Copied(const std::shared_ptr<Letter>& letter, const Piece& piece, bool counted,
              bool read = true);
  void StartReads();
  void EndRead(uint64_t cookie);
  void EndLetters(const Status& status);
  // Returns whether it was a read of Read().
  bool EndRemoteRead(uint64_t cookie, const Status& status);
  void EndRemoteReads(const Status& status);

  // Sends (mesh_peer_send.cc).
  struct Claim {
    std::shared_ptr<Sending> sending;
    Piece piece;  // the whole block
    char* data = nullptr;
  };
  Status ClaimBlock(const Sending* only, Claim* claim);
  Status SendBlock(const Claim& claim, Note note);
  void SendPieces();
  Status HandleTaken(const Note& note);
  Status HandleUnread(const Note& note);
  void HandleWanted(const Note& note);
  void HandleConsumed(const Note& note);
  void Release(const Sending::Staged& staged);
  void Settle(Sending* sending);
  void Forget(const Sending& sending);
  void EndSends(const Status& status);

  const int rank_;
  const std::shared_ptr<MeshState> state_;
  std::shared_ptr<fabric::Channel> channel_;
  std::atomic<uint64_t> sent_{0};  // numbers of notifications
  std::atomic<uint64_t> delivered_{0};

  std::atomic<bool> released_{false};
  std::atomic<bool> heard_{false};  // since the last CheckAlive()

  Liveness liveness_;
  Nanos checked_at_ = 0;
  const char* memory_ = nullptr;  // mapped, or the replica; set when the member is ready
  fabric::MappedSpan mapped_;
  Replica replica_;  // has rules of its own
  std::map<uint64_t, Shared> shared_;

  // Messages to the member.
  uint64_t unconsumed_ = 0;     // bytes that it has to keep, or this one for it, without a receive
  uint64_t early_bytes_ = 0;    // in blocks, of messages that have no receive
  uint64_t wanted_blocks_ = 0;  // hold pieces of messages that have a receive
  uint64_t last_sending_ = 0;
  uint64_t taken_ = 0;                                     // pieces
  Seal seal_;                                              // of messages in place
  bool reads_in_place_ = true;                             // as far as known
  std::map<uint64_t, std::shared_ptr<Sending>> sendings_;  // not taken
  std::list<std::shared_ptr<Sending>> unstaged_;           // those with pieces to copy, in order

  // Messages from the member.
  struct Reading {
    std::shared_ptr<Letter> letter;
    Piece piece;
    Block block;
  };
  SealPlace its_seal_;                                   // constant once it is ready
  std::map<uint64_t, std::shared_ptr<Letter>> letters_;  // not complete, by number
  uint64_t consumed_ = 0;                                // bytes, not reported
  uint64_t last_read_ = 0;
  std::map<uint64_t, Reading> reads_;  // by cookie
  std::deque<Reading> to_read_;

  std::unordered_map<uint64_t, std::shared_ptr<RemoteReads>> remote_reads_;  // by cookie
};

}  // namespace rdma_transport::collectives
