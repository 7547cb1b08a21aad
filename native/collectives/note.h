// The notifications between two members of a group.
#pragma once

#include <cstdint>

namespace rdma_transport::collectives {

// Sent in the memory layout of the sender, which all members must have in common.
struct Note {
  enum Kind : uint32_t {
    kHello = 1,  // `key`: the region that the receiver maps, or into which it writes
    kShare,      // `key`, `length`: one more region
    kWithdraw,   // `key`: no longer
    kMessage,    // `tag`, `length`: of a message, whose first bytes follow
    kMore,       // its next bytes follow
    kConsumed,   // `length`: of a message that has been received
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

}  // namespace rdma_transport::collectives
