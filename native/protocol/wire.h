// The notifications of the protocol, as they lie in a ring. Little-endian, 8-aligned. Whatever
// comes from a peer is checked here before anything looks at it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rdma_transport {

// Peers of another major version do not talk over the fabric.
constexpr uint32_t kProtocolVersion = 5;

enum class MessageType : uint8_t {
  kInline = 1,      // a tensor with its bytes
  kDescriptor = 2,  // a tensor to be read in the sender's memory, until kRelease
  kPull = 3,        // a tensor that waits in the sender for a RecvTensor call
  kRelease = 4,     // the receiver is done with a descriptor
  kPing = 5,
  kPong = 6,
  kEdge = 7,     // the sender declares a static edge: `buffer_id` is its number, `key` without tail
  kSlot = 8,     // where one slot of an edge lies: in the sender's memory, or in the receiver's
  kStatic = 9,   // a tensor of a static edge is in that slot
  kCredit = 10,  // the receiver is done with a slot of its own
  kRetire = 11,  // the sender has done with an edge
  kForget = 12,  // the sender restarts a step: what it sent for it before counts no more
  kAbort = 13,   // the sender aborted a step: nothing more comes for it
  kRestarted = 14,  // the sender knows of a restart, and what it sent before is in front of this
};

enum TensorFlags : uint8_t {
  kDead = 1,           // the producer's branch was not taken
  kReceiverOwned = 2,  // the bytes lie in a region of the receiver itself
  kReceiver =
      4,  // of kEdge, kSlot: the receiver provides the slots, and the sender writes into them
  kOddTail = 8,              // of kStatic: the key ends otherwise than with kUsualTail
  kBlocksUntilRelease = 16,  // of kDescriptor: the sender waits for the release
  kChecked = 32,             // there is a checksum of the bytes
};

struct TensorHeader {
  MessageType type;
  uint8_t flags;
  uint8_t rank;
  uint8_t reserved;
  uint32_t dtype;
  int64_t step;
  uint64_t bytes;
  uint64_t buffer_id;
  uint64_t region_key;
  uint64_t region_offset;
  uint32_t key_length;
  uint32_t checksum;  // if kChecked
};
static_assert(sizeof(TensorHeader) == 56);

// A slot. Numbers are used again for other memory; each time the generation grows.
struct SlotMessage {
  MessageType type;
  uint8_t flags;
  uint16_t slot;
  uint32_t edge;
  uint64_t region_key;
  uint64_t region_offset;
  uint32_t generation;
  uint32_t reserved;
};
static_assert(sizeof(SlotMessage) == 32);

// A tensor in a slot. What follows is the part of its key that the edge does not know, unless that
// is the usual one, and a StaticChecksum if kChecked.
struct StaticMessage {
  MessageType type;
  uint8_t flags;
  uint16_t slot;
  uint32_t edge;
  int64_t step;
  uint64_t buffer_id;  // 0: the slot is the receiver's, and a credit gives it back
  uint32_t generation;
  uint32_t tail_length;
};
static_assert(sizeof(StaticMessage) == 32);

struct StaticChecksum {
  uint32_t checksum;
  uint32_t reserved;
};
static_assert(sizeof(StaticChecksum) == 8);

// A rendezvous key ends with ";frame:iteration"; outside of loops that is always this.
constexpr std::string_view kUsualTail = ";0:0";
// The key without that part.
inline std::string_view WithoutTail(std::string_view key) { return key.substr(0, key.rfind(';')); }

constexpr uint64_t CreditOf(uint32_t edge, uint16_t slot) { return uint64_t{edge} << 16 | slot; }

// kRelease: a lend id; kPing, kPong: the ping's number; kCredit: CreditOf(); kRetire: the edge;
// kForget, kRestarted: the step
struct ControlMessage {
  MessageType type;
  uint8_t reserved[3];
  uint32_t generation;  // of kForget, kRestarted: the one of the step that begins
  uint64_t value;
};
static_assert(sizeof(ControlMessage) == 16);

// What follows is the error: see StepAbort.
struct AbortMessage {
  MessageType type;
  uint8_t reserved[3];
  uint32_t error_length;
  int64_t step;
  uint32_t generation;
  uint32_t peer_generation;
};
static_assert(sizeof(AbortMessage) == 24);

constexpr int kMaxRank = 254;
constexpr size_t kMaxKeyLength = 16384;
constexpr size_t kMaxErrorLength = 16384;

// A tensor message, checked and taken apart. `payload` points into the notification.
struct TensorMessage {
  TensorHeader header;
  std::vector<int64_t> dims;
  std::string key;
  const char* payload = nullptr;
};

MessageType TypeOf(const char* data, size_t length);
Status ParseTensor(const char* data, size_t length, TensorMessage* message);
Status ParseControl(const char* data, size_t length, ControlMessage* message);
Status ParseSlot(const char* data, size_t length, SlotMessage* message);
// `error` points into the notification.
Status ParseAbort(const char* data, size_t length, AbortMessage* message, std::string_view* error);
// `tail` points into the notification; `checksum` is set if kChecked.
Status ParseStatic(const char* data, size_t length, StaticMessage* message, std::string_view* tail,
                   uint32_t* checksum);

// Lays out an abort; `error` must outlive the use of `parts`. What is too long of it is cut off.
class AbortFrame {
 public:
  AbortFrame(int64_t step, uint32_t generation, uint32_t peer_generation, std::string_view error);
  const iovec* parts() const { return parts_; }
  int count() const { return 3; }

 private:
  AbortMessage message_ = {};
  iovec parts_[3];
};

// Lays out a tensor message without copying its parts; `header`, `dims`, `key` and `payload` must
// outlive the use of `parts`.
class TensorFrame {
 public:
  TensorFrame(TensorHeader* header, const int64_t* dims, int rank, std::string_view key,
              const char* payload, size_t payload_length);
  const iovec* parts() const { return parts_; }
  int count() const { return 5; }
  size_t length() const;

 private:
  iovec parts_[5];
};

}  // namespace rdma_transport
