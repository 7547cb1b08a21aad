// The notifications between two members of a group.
#pragma once

#include <cstdint>

namespace rdma_transport::collectives {

// Sent in the memory layout of the sender, which all members must have in common.
struct Note {
  enum Kind : uint32_t {
    // `key`: the region that the receiver maps, or into which it writes. A SealPlace follows.
    kHello = 1,
    kShare,     // `key`, `length`: one more region
    kWithdraw,  // `key`: no longer
    // `tag`, `length`: of a message. Its bytes follow if `key` is 0; otherwise `key` is its number
    // and a Piece may follow.
    kMessage,
    kPiece,   // a Piece of a message follows
    kWanted,  // `key`: a message that has a receive; the other pieces are to be announced
    kTaken,   // `key`: a message, `length`: the offset of bytes that were copied, `tag`: how many
    // `key`: a message, `length`: the offset of a piece that could not be read where it lies, and
    // is to be copied to a block.
    kUnread,
    kConsumed,  // `length`: of messages that came with their bytes, and have been received
    kLeaving,   // the sender closes in order, and waits until its messages have been copied
    // `key`: the steps that the sender has completed; the bytes that follow are those of its region
    // from the offset `length` on. Only between members that do not map each other's memory.
    kStep,
    kCall,  // as kStep, for the first step of a call; `tag`: its parity; the descriptor comes first
    kPing,  // to be answered by kPong
    kPong,
  };
  uint32_t kind = 0;
  int32_t tag = 0;
  uint64_t key = 0;
  uint64_t length = 0;
};

// The most bytes of a piece that lies outside of all regions.
constexpr uint64_t kMaxInPlace = uint64_t{512} << 10;

// Bytes of a message that lie in memory of the sender until they are taken.
struct Piece {
  uint64_t message = 0;
  uint64_t at = 0;  // offset in the message
  uint64_t length = 0;
  uint64_t key = 0;  // of the region, and the offset there
  uint64_t offset = 0;

  // Whether it lies outside of all regions, at the address `offset` of the process.
  bool in_place() const { return key == 0; }
};

}  // namespace rdma_transport::collectives
