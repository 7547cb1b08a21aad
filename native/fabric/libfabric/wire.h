// The wire format of libfabric channels: their addresses, sent through the bootstrap, and messages.
//
// Tensors go by one-sided operations, and notifications in messages. Each message holds
// some records of the channel's stream. Nothing is assumed about the order in which a provider
// delivers messages and writes: a message names its place in the stream, and the writes that must
// be there before its records are read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::libfabric {

constexpr size_t kTokenLength = 16;
constexpr size_t kMarkLength = 8;
constexpr size_t kMaxName = 512;
constexpr uint32_t kMaxChannels = 0xffff;
// How many writes may be under way whose arrival the peer has not confirmed: half of what 16 bits
// can tell apart, and less.
constexpr uint64_t kMaxUnconfirmedWrites = 16384;

// The part of an address that travels as it is: both ends are little-endian, and the bootstrap has
// compared their protocol versions.
struct AddressPart {
  uint64_t tag = 0;  // in all messages to this channel; random
  // Some bytes that this channel's peer may always read: the end of a read says that the operations
  // before it have ended, too.
  uint64_t mark_address = 0;
  uint64_t mark_key = 0;
  uint32_t protocol = 0;
  uint32_t protocol_version = 0;
  uint32_t format = 0;  // of the name, an FI_ number
  uint32_t number = 0;  // in all messages and the remote data of all writes to this channel
  uint32_t frames = 0;  // messages that may be under way to it
  uint32_t remote_data = 0;
};

// The address of a libfabric channel.
struct ChannelAddress : AddressPart {
  std::string provider;  // for users
  std::string name;      // the endpoint's address
  std::string token;     // random; proves knowledge of the address, see greeting.h

  std::string Encode() const;
  // Returns InvalidArgument if `bytes` are malformed.
  static Status Decode(std::string_view bytes, ChannelAddress* address);
};

enum class MessageKind : uint16_t {
  kStream = 1,  // bytes of records
  kConfirm,     // no bytes
  kGone,        // a reason: the sender starts no more operations
  kDrained,     // like kGone, and those that it started have ended
};

struct MessageHeader {
  uint64_t tag;        // of the receiving channel
  uint64_t sequence;   // kStream: place in the stream, starting at 1; kConfirm: of the last one
  uint64_t confirmed;  // messages of the stream in the other direction that were read
  uint64_t arrived;    // writes with remote data in that direction: all up to this one are there
  uint64_t writes;     // kStream: writes with remote data that must have arrived first
  uint32_t channel;    // the receiving channel's number
  MessageKind kind;
  uint16_t wants_confirmation;  // at once
};

// kPart: the next part of the record that the first one of another kind ends.
enum class RecordKind : uint32_t { kNotification = 1, kRegion, kWithdraw, kHello, kAccept, kPart };

struct RecordHeader {
  uint32_t length;
  RecordKind kind;
};

// A region that the receiver of this record may access, until a kWithdraw with its key.
struct RegionRecord {
  uint64_t key;
  uint64_t length;
  uint64_t base;        // address of the first byte in one-sided operations
  uint64_t remote_key;  // key of the registration
  uint64_t writable;
};

// The remote data of a write: the number of the channel, and its place among the channel's writes.
inline uint32_t RemoteData(uint32_t channel, uint64_t sequence) {
  return channel << 16 | static_cast<uint32_t>(sequence & 0xffff);
}

}  // namespace rdma_transport::fabric::libfabric
