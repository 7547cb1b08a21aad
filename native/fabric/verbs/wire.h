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
//
// If the queue pair of the notifications fails, both go on through another port; see
// channel_move.cc.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
  // A port through which the channel can be reached, the preferred one first.
  struct Port {
    bool ethernet = false;
    bool active = false;       // when the address was made
    bool known = true;         // false: it was never active, so `gid` and what follows are empty
    bool ring_window = false;  // the ring is writable once an empty credit was answered
    std::array<uint8_t, 16> gid = {};
    int subnet_bits = 0;  // leading bits of `gid` that all ports of its subnet have in common
    uint16_t lid = 0;
    uint32_t mtu = 0;           // ibv_mtu
    uint32_t read_depth = 0;    // concurrent reads that it serves
    uint64_t ring_address = 0;  // the same ring on each port
    uint32_t ring_rkey = 0;
  };
  struct QueuePair {
    uint32_t number = 0;  // 0: there will be one if the port becomes active
    uint32_t first_psn = 0;
    uint32_t port = 0;  // index in `ports`
  };

  std::vector<Port> ports;             // at least one
  std::vector<QueuePair> queue_pairs;  // at least one of each port, at most kMaxQueuePairs
  uint32_t rails = 1;                  // most pairs of ports to connect
  uint64_t ring_size = 0;
  uint64_t ring_limit = 0;    // of the size to which the ring may grow
  uint32_t most_batches = 0;  // maximum number of batches in flight, one receive each
  std::string token;          // random; proves knowledge of the address, see greeting.h

  std::string Encode() const;
  // Returns InvalidArgument if `bytes` are malformed.
  static Status Decode(std::string_view bytes, ChannelAddress* address);
};

// The records from kPairOffer on are about one queue pair on a further port, see PairRecord.
enum class RecordKind : uint32_t {
  kNotification = 1,
  kRegion,
  kForget,
  kHello,
  kAccept,
  kBye,
  kRing,
  kMoved,       // empty; the first one in a larger ring
  kPairOffer,   // of the active end, when both ends are down: there is a new one
  kPairAnswer,  // of the passive end to an offer: the other end of it
  // Of the active end: it has been tested, and all memory was announced for it. Of the passive end:
  // its port is active again.
  kPairUp,
  kPairReady,  // of the passive end to kPairUp: it has announced its memory, too
  kRingEnd,    // how a queue pair that is used again reaches a ring
  kConnected,  // empty; of the active end: it has been accepted
};

// A record starts at a multiple of 8.
struct RecordHeader {
  uint32_t length;
  RecordKind kind;
};
constexpr uint32_t kNoMoreRecords = 0xffffffff;

// A region that the receiver of this record may now access. One RegionEnd follows, valid on all
// queue pairs, or one for each queue pair.
struct RegionRecord {
  uint64_t key;
  uint64_t length;
  uint32_t writable;
  uint32_t ends;
};
constexpr uint32_t kUsable = 1;
constexpr uint32_t kUsableFar = 2;
struct RegionEnd {
  uint64_t address;
  uint32_t rkey;
  // 0: the region cannot be accessed by this queue pair; kUsableFar: but others are nearer to it.
  uint32_t usable;
};

struct PairRecord {
  uint32_t index;  // of the queue pair, equal at both ends
  // The rest is of kPairOffer and kPairAnswer. The port may have been unknown, or have changed.
  uint32_t number;
  uint32_t first_psn;
  uint32_t mtu;
  uint32_t read_depth;
  uint16_t lid;
  uint8_t ethernet;
  uint8_t reserved;
  uint8_t gid[16];
};

// A larger ring, which the receiver of this record may begin. `ends` RegionEnds follow, one for
// each queue pair. A size of 0 refuses one.
struct RingRecord {
  uint64_t size;
  uint32_t ends;
  uint32_t reserved;
};

// How queue pair `index` reaches the ring of this size.
struct RingEndRecord {
  uint64_t size;
  uint32_t index;
  uint32_t reserved;
  RegionEnd end;
};

// The immediate value of a batch, a credit or a signal, in host byte order.
struct Immediate {
  bool credit = false;
  // The batch starts at the beginning of the ring. A "credit" with it releases no room, but is a
  // signal, which overtakes batches and needs no room.
  bool wrapped = false;
  // The length of the batch, or how much was consumed.
  uint32_t units = 0;
  // The number of batches consumed; 1 for the first batch in a larger ring.
  uint32_t batches = 0;

  bool Moved() const { return !credit && batches != 0; }

  // Queue pair `units` is broken at the sender's end, so nothing more arrives there. `batches`: 1
  // if the peer is to break its end and to answer.
  bool IsPairDown() const { return credit && wrapped && batches <= 1; }
  static Immediate PairDown(size_t index, bool answer) {
    return {true, true, static_cast<uint32_t>(index), answer ? 1u : 0u};
  }
  // The sender lacks room, and requests a ring of `units` times kRingGranule bytes.
  bool IsRingRequest() const { return credit && wrapped && batches == 2; }
  static Immediate RingRequest(uint64_t bytes) {
    return {true, true, static_cast<uint32_t>(bytes / kRingGranule), 2};
  }

  // The sender cannot go on through another port, and breaks the channel.
  bool IsGone() const { return credit && wrapped && batches == 3; }
  static Immediate Gone() { return {true, true, 0, 3}; }
  // Queue pair `index`, which carried the notifications, is broken at the sender's end. Before
  // that, `units` batches, credits and signals arrived there, modulo kCountModulus.
  bool IsArrived() const {
    return credit && wrapped && batches >= kArrived && batches < kArrived + kMaxQueuePairs;
  }
  static Immediate Arrived(size_t index, uint32_t count) {
    return {true, true, count % kCountModulus, kArrived + static_cast<uint32_t>(index)};
  }
  size_t ArrivedIndex() const { return batches - kArrived; }
  static constexpr uint32_t kCountModulus = 0x10000;
  static constexpr uint32_t kArrived = 8;

  uint32_t Encode() const {
    return (credit ? 1u << 31 : 0) | (wrapped ? 1u << 30 : 0) | batches << 16 | units;
  }
  static Immediate Decode(uint32_t value) {
    return {(value >> 31) != 0, (value >> 30 & 1) != 0, value & 0xffff, value >> 16 & kMaxBatches};
  }
};

}  // namespace rdma_transport::fabric::verbs
