// The records of a striped channel, as notifications of its rails. A channel with one rail has
// none: its notifications are the user's, and nothing else is sent.
//
// Each rail counts its records. A mark is a record for the sake of the count: what was written on
// the rail before it is visible when it arrives. All others but kHello are numbered across the
// rails, and may say for how many records of other rails they wait.
#pragma once

#include <cstdint>

namespace rdma_transport::fabric::striped {

enum class RecordKind : uint8_t {
  kHello = 1,     // the first record of each rail
  kMark,          // see above
  kNotification,  // of the user
  kBye,           // the channel closes; a text says why
  kDown,          // of a rail that failed: this end of it is closed
  kSettled,       // what the peer did not get on a rail that failed has been sent again
  kOffer,         // of the active end: a new plain channel for a rail that is down
  kAnswer,        // of the passive end: its own plain channel
  kDecline,       // of an end where it does not connect: not now
  kReady,         // of the passive end: its port has become active, so make another offer
};

// Whether a record is of the rails, and not of the user.
constexpr bool IsControl(RecordKind kind) { return kind > RecordKind::kBye; }

// 16 bytes, so that what follows keeps its alignment.
struct RecordHeader {
  RecordKind kind = RecordKind::kNotification;
  uint8_t waits = 0;  // that many `Wait` at the end of the record
  uint16_t unused = 0;
  // The record follows all that are numbered lower by at least this; 0: none. One of the rails
  // follows only others of the rails, but not kSettled.
  uint32_t back = 0;
  uint64_t number = 0;  // kMark: the count, this one included; kHello: of the rail
};
static_assert(sizeof(RecordHeader) == 16);

struct Wait {
  uint32_t rail = 0;
  uint32_t unused = 0;
  uint64_t records = 0;
};
constexpr uint64_t kUntilSettled = ~uint64_t{0};

// Of kDown and of those after it. An address may follow.
struct RailRecord {
  uint32_t rail = 0;  // kOffer, kAnswer: the new one
  union {
    uint32_t slot = 0;  // kOffer and those after it
    uint32_t carried;   // kDown: whether the sender ever used the rail
  };
  uint64_t received = 0;  // kDown: records that came on the rail
};
static_assert(sizeof(RailRecord) == 16);

}  // namespace rdma_transport::fabric::striped
