// What two verbs channels say to each other: their addresses through the bootstrap, and records in
// the ring of notifications.
//
// A channel's notifications are written into a ring in the receiver's memory. Each RDMA write with
// immediate data adds one batch of records and tells, in the immediate value, how long it is; its
// completion comes after the bytes of this and of all earlier writes of the queue pair are there.
// The receiver gives the room back by empty writes with immediate data ("credits").
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
// Room is counted in units, so that a batch and a credit fit an immediate value.
constexpr uint64_t kUnit = 64;
constexpr uint64_t kMaxUnits = 0xffff;
constexpr uint32_t kMaxBatches = 0x3fff;

struct ChannelAddress {
  struct QueuePair {
    uint32_t number = 0;
    uint32_t first_psn = 0;
  };

  bool ethernet = false;
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;
  uint32_t mtu = 0;         // ibv_mtu
  uint32_t read_depth = 0;  // reads it answers at a time
  uint32_t queue_pairs = 0;
  std::array<QueuePair, kMaxQueuePairs> queue_pair = {};
  uint64_t ring_address = 0;
  uint64_t ring_size = 0;
  uint32_t ring_rkey = 0;
  uint32_t most_batches = 0;  // that it has receives for
  bool ring_window = false;   // the ring can be written when a first credit of nothing was answered
  std::string token;          // who knows it was told it by the bootstrap: see greeting.h

  std::string Encode() const;
  static Status Decode(std::string_view bytes, ChannelAddress* address);
};

enum class RecordKind : uint32_t { kNotification = 1, kRegion, kForget, kHello, kAccept, kBye };

// Records start at multiples of 8.
struct RecordHeader {
  uint32_t length;
  RecordKind kind;
};
constexpr uint32_t kNoMoreRecords = 0xffffffff;

// A region that the receiver of this may reach from now on. Behind it may be further keys of 32
// bits, those of the queue pairs after the first; otherwise `rkey` is that of all.
struct RegionRecord {
  uint64_t key;
  uint64_t address;
  uint64_t length;
  uint32_t rkey;
  uint32_t writable;
};

// Immediate values, in host order.
struct Immediate {
  bool credit = false;
  bool wrapped = false;  // the batch begins at the start of the ring
  uint32_t units = 0;    // the batch's length, or how much was consumed
  uint32_t batches = 0;  // how many batches were consumed

  uint32_t Encode() const {
    return (credit ? 1u << 31 : 0) | (wrapped ? 1u << 30 : 0) | batches << 16 | units;
  }
  static Immediate Decode(uint32_t value) {
    return {(value >> 31) != 0, (value >> 30 & 1) != 0, value & 0xffff, value >> 16 & kMaxBatches};
  }
};

}  // namespace rdma_transport::fabric::verbs
