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
constexpr uint32_t kProtocolVersion = 1;

enum class MessageType : uint8_t {
  kInline = 1,      // a tensor with its bytes
  kDescriptor = 2,  // a tensor to be read in the sender's memory, until kRelease
  kPull = 3,        // a tensor that waits in the sender for a RecvTensor call
  kRelease = 4,     // the receiver is done with a descriptor
  kPing = 5,
  kPong = 6,
};

enum TensorFlags : uint8_t {
  kDead = 1,  // the producer's branch was not taken
  kHome = 2,  // the bytes lie in a region of the receiver itself
};

struct TensorHeader {
  MessageType type;
  uint8_t flags;
  uint8_t rank;
  uint8_t reserved;
  uint32_t dtype;
  int64_t step;
  uint64_t bytes;
  uint64_t lend_id;
  uint64_t region_key;
  uint64_t region_offset;
  uint32_t key_length;
  uint32_t reserved2;
};
static_assert(sizeof(TensorHeader) == 56);

struct ControlMessage {  // kRelease: a lend id; kPing, kPong: the ping's number
  MessageType type;
  uint8_t reserved[7];
  uint64_t value;
};
static_assert(sizeof(ControlMessage) == 16);

constexpr int kMaxRank = 254;
constexpr size_t kMaxKeyLength = 16384;

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
