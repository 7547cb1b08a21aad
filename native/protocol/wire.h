// The protocol's notifications as they are laid out in a ring. Little-endian, 8-byte aligned.
// Everything from a peer is validated here before it is used.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace rdma_transport {

// Peers of different versions do not use the fabric.
constexpr uint32_t kProtocolVersion = 18;

// What a notification is; its first byte.
enum class MessageType : uint8_t {
  kInline = 1,      // a tensor with its bytes
  kDescriptor = 2,  // a tensor to read from the sender's memory, until kRelease
  kPull = 3,        // a tensor that waits at the sender for a RecvTensor call
  kRelease = 4,     // the receiver is done with a descriptor's buffer
  kPing = 5,
  kPong = 6,
  kEdge = 7,           // the sender declares a static edge; its key has no suffix
  kSlot = 8,           // a sender-side slot of an edge
  kStatic = 9,         // a tensor of a static edge is in this slot
  kCredit = 10,        // the receiver is done with a receiver-side slot
  kRetire = 11,        // the sender removes an edge
  kRestart = 12,       // the sender restarted a step: discard what it sent for it before
  kAbort = 13,         // the sender aborted a step and sends nothing more for it
  kRestarted = 14,     // confirms kRestart; what the sender sent before it has arrived
  kRequestSlots = 15,  // the sender requests more receiver-side slots
  kReturnSlot = 16,    // a receiver-side slot was written in vain; a credit answers
  kCall = 17,          // a call of the receiver's worker service
  kReply = 18,         // the end of a call
  kCancelCall = 19,    // the caller no longer waits for the reply
  kPoolSlot = 20,      // a receiver-side slot of a pool
  kReadLater = 21,     // the receiver wants to read later tensors of an edge instead
};

enum TensorFlags : uint8_t {
  kDead = 1,                 // the producer's branch was not taken
  kReceiverOwned = 2,        // the bytes lie in the receiver's own region
  kOwnSuffix = 8,            // of kStatic: the key's suffix is not kUsualSuffix
  kBlocksUntilRelease = 16,  // of kDescriptor: the sender waits for the release
  kChecked = 32,             // the message has a checksum of the bytes
};

struct TensorSource {
  uint64_t buffer_id;
  uint64_t region_key;
  uint64_t region_offset;
};

struct EdgeNumbers {
  uint32_t number;
  uint32_t pool;  // of its slots; 0 if they are sender-side
};

// The beginning of kInline, kDescriptor, kPull and kEdge. Followed by dimensions, key and payload.
struct TensorHeader {
  MessageType type;
  uint8_t flags;
  uint8_t rank;
  uint8_t reserved;
  uint32_t dtype;
  int64_t step;
  uint64_t bytes;
  union {
    TensorSource source;  // of kDescriptor
    EdgeNumbers edge;     // of kEdge
  };
  uint32_t key_length;
  uint32_t checksum;  // if kChecked
};
static_assert(sizeof(TensorHeader) == 56);

// Its number is reused for other memory; each reuse increments the generation.
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

struct PoolSlotMessage {
  MessageType type;
  uint8_t reserved;
  uint16_t slot;
  uint32_t pool;
  uint64_t region_key;
  uint64_t region_offset;
};
static_assert(sizeof(PoolSlotMessage) == 24);

// A tensor in a slot of its edge, or of the edge's pool of receiver-side slots. Followed by the
// key's suffix, unless it is the usual one, and by a StaticChecksum if kChecked.
struct StaticMessage {
  MessageType type;
  uint8_t flags;
  uint16_t slot;
  uint32_t edge;
  int64_t step;
  uint64_t buffer_id;   // 0 if the slot is receiver-side and returned by a credit
  uint32_t generation;  // of a sender-side slot
  uint32_t suffix_length;
};
static_assert(sizeof(StaticMessage) == 32);

struct StaticChecksum {
  uint32_t checksum;
  uint32_t reserved;
};
static_assert(sizeof(StaticChecksum) == 8);

// The frame-and-iteration suffix of a rendezvous key (";frame:iteration") outside loops.
constexpr std::string_view kUsualSuffix = ";0:0";
// The key without that suffix.
inline std::string_view WithoutSuffix(std::string_view key) {
  return key.substr(0, key.rfind(';'));
}

constexpr uint64_t CreditOf(uint32_t pool, uint16_t slot) { return uint64_t{pool} << 16 | slot; }

// All messages without a structure of their own.
struct ControlMessage {
  ControlMessage() = default;
  explicit ControlMessage(MessageType of) : type(of), reserved{}, generation(0), step(0) {}

  MessageType type;
  uint8_t reserved[3];
  union {
    uint32_t generation;  // of kRestart, kRestarted: the step's new one
    uint32_t count;       // of kRequestSlots
  };
  union {
    int64_t step;        // of kRestart, kRestarted
    uint32_t pool;       // of kRequestSlots
    uint64_t credit;     // of kCredit, kReturnSlot: CreditOf()
    uint32_t edge;       // of kRetire, kReadLater
    uint64_t buffer_id;  // of kRelease
    uint64_t call;       // of kCancelCall
  };
};
static_assert(sizeof(ControlMessage) == 16);

// Followed by the error; see StepAbort.
struct AbortMessage {
  MessageType type;
  uint8_t reserved[3];
  uint32_t error_length;
  int64_t step;
  uint32_t generation;
  uint32_t peer_generation;
};
static_assert(sizeof(AbortMessage) == 24);

// The methods of a worker service that are called over links.
enum class CallMethod : uint8_t { kRunGraph = 1, kCleanupGraph = 2 };

enum class CallResult : uint8_t {
  kDone = 0,
  kFailed = 1,   // with the error that the service encoded
  kRefused = 2,  // the call was not made here
};

// A call, followed by its request, or a reply, followed by its error. Each side numbers its calls.
struct CallMessage {
  MessageType type;
  CallMethod method;  // of kCall
  CallResult result;  // of kReply
  uint8_t reserved;
  uint32_t length;
  uint64_t number;
};
static_assert(sizeof(CallMessage) == 16);

constexpr int kMaxRank = 254;
constexpr size_t kMaxKeyLength = 16384;
constexpr size_t kMaxErrorLength = 16384;
constexpr size_t kMaxCallLength = 16384;

// A validated and decoded tensor message. `payload` points into the notification.
struct TensorMessage {
  TensorHeader header;
  std::vector<int64_t> dims;
  std::string key;
  const char* payload = nullptr;
};

MessageType TypeOf(const char* data, size_t length);
// The Parse functions return DataLoss if the bytes do not follow the protocol.
//
// A message that nothing follows.
template <typename Message>
Status ParseFixed(const char* data, size_t length, Message* message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  if (length != sizeof(*message))
    return Status(Code::kDataLoss, "a notification of a wrong length");
  std::memcpy(message, data, sizeof(*message));
  return OkStatus();
}
Status ParseTensor(const char* data, size_t length, TensorMessage* message);
// `error` points into the notification.
Status ParseAbort(const char* data, size_t length, AbortMessage* message, std::string_view* error);
// `body` points into the notification: the request or the error.
Status ParseCall(const char* data, size_t length, CallMessage* message, std::string_view* body);
// `suffix` points into the notification; `checksum` is set if kChecked.
Status ParseStatic(const char* data, size_t length, StaticMessage* message,
                   std::string_view* suffix, uint32_t* checksum);

// Lays out an abort. `error` must outlive `parts`, and is truncated to kMaxErrorLength.
class AbortFrame {
 public:
  AbortFrame(int64_t step, uint32_t generation, uint32_t peer_generation, std::string_view error);
  const iovec* parts() const { return parts_; }
  int count() const { return 3; }

 private:
  AbortMessage message_ = {};
  iovec parts_[3];
};

// Lays out a call or a reply. `body` must outlive `parts`, and be no longer than kMaxCallLength.
class CallFrame {
 public:
  CallFrame(const CallMessage& message, std::string_view body);
  const iovec* parts() const { return parts_; }
  int count() const { return 3; }

 private:
  CallMessage message_;
  iovec parts_[3];
};

// Lays out a tensor message without copying it. `header`, `dims`, `key` and `payload` must outlive
// `parts`.
class TensorFrame {
 public:
  TensorFrame(TensorHeader* header, const int64_t* dims, int rank, std::string_view key,
              const char* payload, size_t payload_length);
  const iovec* parts() const { return parts_; }
  int count() const { return 5; }

 private:
  iovec parts_[5];
};

}  // namespace rdma_transport
