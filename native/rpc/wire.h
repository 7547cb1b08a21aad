// The notifications of RPC and the text of a reply. Little-endian. Everything from a peer is
// validated here before it is used.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "rpc/message.h"

namespace rdma_transport::rpc {

// Peers of different versions do not use the fabric.
constexpr uint32_t kVersion = 2;
// The service name in the bootstrap's handshake.
inline constexpr std::string_view kService = "rpc";
constexpr size_t kMaxRequest = 4096;
constexpr size_t kMaxPlaces = 1024;
// The most bytes of a reply's text in one notification.
constexpr size_t kPartBytes = size_t{32} << 10;

// Who sends a notification, and what it is.
enum class Type : uint8_t {
  kRequest = 1,        // client: a request, and places for its payloads
  kSizes = 2,          // server: sizes of the large payloads, because they do not fit the places
  kReceiveBuffer = 3,  // client: places that fit
  kPart = 4,    // server: the next bytes of the reply's text, after all payloads were written
  kCancel = 5,  // client: gave up, but needs the reply, after which no payload is written
  kPing = 6,
  kPong = 7,
};

// The beginning of each notification. Followed by places or sizes, and by bytes.
struct Header {
  Type type;
  uint8_t reserved[3];
  uint32_t count;  // number of places or sizes
  uint64_t call;
  uint64_t length;  // of the request or the part
  uint64_t total;   // of the reply's text
};
static_assert(sizeof(Header) == 32);

// Memory of the client for a payload. If `length` is 0, there is none.
struct Place {
  uint64_t key;
  uint64_t offset;
  uint64_t length;
};
static_assert(sizeof(Place) == 24);

// A validated notification.
struct Message {
  Header header;
  std::vector<Place> places;
  std::vector<uint64_t> sizes;
  std::string_view bytes;  // points into the notification
};

// Returns DataLoss if the bytes do not follow the protocol.
Status Parse(const char* data, size_t length, Message* message);

// The parts of a notification. The constructor's arguments must outlive it.
class Frame {
 public:
  Frame(const Header* header, const void* table, size_t table_bytes, std::string_view bytes);
  const iovec* parts() const { return parts_; }
  int count() const { return 3; }

 private:
  iovec parts_[3];
};

// The error for a peer that does not follow the protocol.
inline Status ProtocolViolation(const char* what) { return Status(Code::kDataLoss, what); }

// Encodes a reply without the payloads that were written to places. For each payload, `places` has
// its place, counted from 1, or 0 if the payload is in the text.
std::string EncodeReply(const Reply& reply, const std::vector<uint64_t>& places);
// Returns DataLoss if `text` is malformed. The caller must set `data` of the payloads in places.
Status DecodeReply(std::string text, Response* response);

}  // namespace rdma_transport::rpc
