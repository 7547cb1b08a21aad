// The wire format of verbs channels: their addresses, sent through the bootstrap, and records in
// the ring of notifications.
//
// A channel writes its notifications into a ring in the receiver's memory. Each RDMA write with
// immediate data adds one batch of records; the immediate value is the length of the batch. Its
// completion follows the bytes of this and all earlier writes of the queue pair. The receiver frees
// room in the ring with empty writes with immediate data ("credits").
//
// A ring begins small. A sender that lacks room asks for a larger one with an empty write with
// immediate data, once at a time. The receiver answers with a record. The sender's next batch then
// begins the new ring, and the old one ends.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric::verbs {

constexpr size_t kTokenLength = 16;
constexpr int kMaxQueuePairs = 8;
// Room is counted in units, so that a batch or a credit fits into an immediate value.
constexpr uint64_t kUnit = 64;
// Rings have whole pages. The first one is small, because most peers of a large job are idle.
constexpr uint64_t kRingGranule = 4096;
constexpr uint64_t kFirstRing = 4 * kRingGranule;
constexpr uint64_t kMaxUnits = 0xffff;
constexpr uint32_t kMaxBatches = 0x3fff;

// The address of a verbs channel.
struct ChannelAddress {
  struct QueuePair {
    uint32_t number = 0;
    uint32_t first_psn = 0;
  };

  bool ethernet = false;
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;
  uint32_t mtu = 0;         // ibv_mtu
  uint32_t read_depth = 0;  // concurrent reads that it serves
  uint32_t queue_pairs = 0;
  std::array<QueuePair, kMaxQueuePairs> queue_pair = {};
  uint64_t ring_address = 0;
  uint64_t ring_size = 0;
  uint64_t ring_limit = 0;  // of the size to which the ring may grow
  uint32_t ring_rkey = 0;
  uint32_t most_batches = 0;  // maximum number of batches in flight, one receive each
  bool ring_window = false;   // the ring is writable once an empty credit was answered
  std::string token;          // random; proves knowledge of the address, see greeting.h

  std::string Encode() const;
  // Returns InvalidArgument if `bytes` are malformed.
  static Status Decode(std::string_view bytes, ChannelAddress* address);
};

enum class RecordKind : uint32_t {
  kNotification = 1,
  kRegion,
  kForget,
  kHello,
  kAccept,
  kBye,
  kRing,
  kMoved,  // empty; the first one in a larger ring
};

// A record starts at a multiple of 8.
struct RecordHeader {
  uint32_t length;
  RecordKind kind;
};
constexpr uint32_t kNoMoreRecords = 0xffffffff;

// A region that the receiver of this record may now access. Further 32-bit keys may follow, one for
// each queue pair after the first. Otherwise `rkey` is valid on all queue pairs.
struct RegionRecord {
  uint64_t key;
  uint64_t address;
  uint64_t length;
  uint32_t rkey;
  uint32_t writable;
};

// A larger ring, which the receiver of this record may begin. A size of 0 refuses one.
struct RingRecord {
  uint64_t address;
  uint64_t size;
  uint32_t rkey;
  uint32_t reserved;
};

// The immediate value of a batch, a credit or a request for a larger ring, in host byte order.
struct Immediate {
  bool credit = false;
  bool wrapped = false;  // the batch starts at the beginning of the ring; a "credit" is a request
  uint32_t units = 0;    // length of the batch, how much was consumed, or kRingGranules requested
  uint32_t batches = 0;  // number of batches consumed; 1 for the first batch in the next ring

  bool request() const { return credit && wrapped; }
  bool moved() const { return !credit && batches != 0; }

  uint32_t Encode() const {
    return (credit ? 1u << 31 : 0) | (wrapped ? 1u << 30 : 0) | batches << 16 | units;
  }
  static Immediate Decode(uint32_t value) {
    return {(value >> 31) != 0, (value >> 30 & 1) != 0, value & 0xffff, value >> 16 & kMaxBatches};
  }
};

}  // namespace rdma_transport::fabric::verbs
