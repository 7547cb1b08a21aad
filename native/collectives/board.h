// The memory that a member of a group shares with the others. The owner writes it, and the others
// only read it: each maps it read-only, or has a replica of it (replica.h).
//
//   board | stage 0 | stage 1 | results 0 | results 1
//
// The stages hold a member's contribution to a round, the results what it has reduced. Rounds take
// turns with the two of each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdma_transport::collectives {

// What a member asks for. All members of a call compare it, up to `op`.
struct Descriptor {
  enum Flag : uint8_t {
    kDirect = 1,   // the arrays lie in a region that all members have mapped
    kRemote = 2,   // the member does not map the memory of all others
    kHosts = 4,    // it maps that of its host, and no other
    kUneven = 8,   // it was sent `input` bytes of rank `root`, where it expects `output`
    kPlaced = 16,  // the others, none of whom maps its memory, may write its output where it lies
  };
  uint64_t count = 0;  // elements; of kExchange the bytes of the largest piece, not compared
  int32_t root = 0;
  uint8_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t flags = 0;
  // If kDirect or kPlaced: the arrays' region, and their offsets there in bytes.
  uint64_t key = 0;
  uint64_t input = 0;
  uint64_t output = 0;
};

struct Board {
  // The steps that the owner has completed; never decreases, apart from wrapping around. The word
  // is a futex.
  alignas(128) std::atomic<uint32_t> progress;
  // 1 + the rank of the member for whose progress the owner sleeps, or 0.
  alignas(128) std::atomic<uint32_t> sleeps_for;
  // 1 while the owner has no call and sleeps until a member starts one, or else 0. A futex, too.
  std::atomic<uint32_t> idle;
  alignas(128) Descriptor descriptors[2];  // of even and odd calls
};

constexpr size_t kRegionBytes = size_t{2} << 20;
constexpr size_t kBoardBytes = 4096;
constexpr size_t kStageBytes = (kRegionBytes - kBoardBytes) / 4;
// Stages and results in halves: the units in which the end of writes to replicas is awaited.
constexpr size_t kParts = 8;
constexpr size_t kPartBytes = kStageBytes / 2;
constexpr size_t PartAt(size_t offset) { return (offset - kBoardBytes) / kPartBytes; }
static_assert(sizeof(Board) <= kBoardBytes);
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);
static_assert(kStageBytes % 1024 == 0);

}  // namespace rdma_transport::collectives
