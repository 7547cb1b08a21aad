// The notifications of an exchange, and the text that a reply is. Little-endian. Whatever comes
// from a peer is checked here before anything looks at it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rpc/message.h"

namespace rdma_transport::rpc {

// Peers of another version do not talk over the fabric.
constexpr uint32_t kVersion = 2;
// For the bootstrap's handshake.
inline constexpr std::string_view kService = "rpc";
constexpr size_t kMaxRequest = 4096;
constexpr size_t kMaxPlaces = 1024;
// What one notification carries of a reply's text.
constexpr size_t kPartBytes = size_t{32} << 10;

enum class Type : uint8_t {
  kRequest = 1,  // caller: a request, and places for its payloads
  kSizes = 2,    // responder: the large payloads have these sizes, which the places do not fit
  kLanding = 3,  // caller: places that fit
  kPart = 4,     // responder: the next bytes of the reply's text, after all that landed
  kCancel = 5,   // caller: does not wait any more; still wants the reply, after which nothing lands
  kPing = 6,
  kPong = 7,
};

struct Header {
  Type type;
  uint8_t reserved[3];
  uint32_t count;  // of places, or of sizes
  uint64_t call;
  uint64_t length;  // of the request, or of a part
  uint64_t total;   // of the reply's text
};
static_assert(sizeof(Header) == 32);

// Memory of the caller in which a payload may land; `length` 0: none.
struct Place {
  uint64_t key;
  uint64_t offset;
  uint64_t length;
};
static_assert(sizeof(Place) == 24);

struct Message {
  Header header;
  std::vector<Place> places;
  std::vector<uint64_t> sizes;
  std::string_view bytes;  // in the notification
};

Status Parse(const char* data, size_t length, Message* message);

// The parts of a notification; refers to all that it was made of.
class Frame {
 public:
  Frame(const Header* header, const void* table, size_t table_bytes, std::string_view bytes);
  const iovec* parts() const { return parts_; }
  int count() const { return 3; }

 private:
  iovec parts_[3];
};

// What the peer sent does not follow the protocol.
inline Status ProtocolViolation(const char* what) { return Status(Code::kDataLoss, what); }

// A reply without the payloads that landed; `places` says for each payload in which place, from 1,
// or 0: it rides in the text.
std::string EncodeReply(const Reply& reply, const std::vector<uint64_t>& places);
// DataLoss: not such a text. What landed gets no `data`, that is the caller's to set.
Status DecodeReply(std::string text, Response* response);

}  // namespace rdma_transport::rpc
