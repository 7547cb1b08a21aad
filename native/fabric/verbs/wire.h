// The wire format of verbs channels: their addresses, sent through the bootstrap, and records in
// the ring of notifications.
//
// A channel writes its notifications into a ring in the receiver's memory. Each RDMA write with
// immediate data adds one batch of records; the immediate value is the length of the batch. Its
// completion follows the bytes of this and all earlier writes of the queue pair. The receiver frees
// room in the ring with empty writes with immediate data ("credits").
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric::verbs {

constexpr size_t kTokenLength = 16;
// Room is counted in units, so that a batch or a credit fits into an immediate value.
constexpr uint64_t kUnit = 64;
// The rings of this side, and the bounds of a peer's. The first channels of a device get large
// rings, which hold bursts. In a job of many tasks, those of the others must cost little: each end
// also has a mirror of the peer's ring.
constexpr uint64_t kLargeRing = uint64_t{256} << 10;
constexpr uint64_t kSmallRing = uint64_t{64} << 10;
constexpr size_t kLargeRings = 64;
constexpr uint64_t kMinRing = uint64_t{16} << 10;
constexpr uint64_t kMaxRing = uint64_t{1} << 20;
constexpr uint64_t kMaxUnits = 0xffff;
constexpr uint32_t kMaxBatches = 0x3fff;

// The address of a verbs channel.
struct ChannelAddress {
  // The port.
  bool ethernet = false;
  uint8_t gid_type = 0;  // GidType
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;
  bool grh_required = false;  // packets to the port need a global route header
  uint32_t mtu = 0;           // ibv_mtu
  uint32_t read_depth = 0;    // concurrent reads that it serves
  // The queue pair.
  uint32_t number = 0;
  uint32_t first_psn = 0;
  uint32_t most_batches = 0;  // maximum number of batches in flight, one receive each
  // The ring.
  uint64_t ring_address = 0;
  uint64_t ring_size = 0;
  uint32_t ring_rkey = 0;

  std::string token;  // random; proves knowledge of the address, see greeting.h

  std::string Encode() const;
  // Returns InvalidArgument if `bytes` are malformed.
  static Status Decode(std::string_view bytes, ChannelAddress* address);
};

enum class RecordKind : uint32_t {
  kNotification = 1,
  kPart,  // of a notification that the next records of these two kinds continue
  kRegion,
  kWithdraw,
  kHello,
  kAccept,
  kConnected,  // empty; of the active end: it has been accepted
  kBye,
};

// A record starts at a multiple of 8.
struct RecordHeader {
  uint32_t length;
  RecordKind kind;
};
constexpr uint32_t kNoMoreRecords = 0xffffffff;

// A region that the receiver of this record may access, until a kWithdraw with its key.
struct RegionRecord {
  uint64_t key;
  uint64_t length;
  uint64_t address;
  uint32_t rkey;
  uint32_t writable;
};

// The immediate value of a batch or a credit, in host byte order.
struct Immediate {
  bool credit = false;
  bool wrapped = false;  // the batch starts at the beginning of the ring
  // The length of the batch, or how much was consumed.
  uint32_t units = 0;
  uint32_t batches = 0;  // of a credit: how many were consumed

  uint32_t Encode() const {
    return (credit ? 1u << 31 : 0) | (wrapped ? 1u << 30 : 0) | batches << 16 | units;
  }
  static Immediate Decode(uint32_t value) {
    return {(value >> 31) != 0, (value >> 30 & 1) != 0, value & 0xffff, value >> 16 & kMaxBatches};
  }
};

}  // namespace rdma_transport::fabric::verbs
