#include "rpc/wire.h"

#include <cstring>
#include <utility>

namespace rdma_transport::rpc {
namespace {

constexpr uint32_t kMaxCode = 16;  // of the canonical codes; Code does not name all of them

struct ReplyHeader {
  uint32_t code;
  uint32_t message_length;
  uint32_t head_length;
  uint32_t payloads;
};

struct PayloadEntry {
  uint64_t bytes;
  uint64_t place;
};

Status Malformed(const char* what) {
  return Status(Code::kDataLoss, std::string("a malformed RPC notification: ") + what);
}

iovec Part(const void* data, size_t length) { return {const_cast<void*>(data), length}; }

template <typename T>
std::string_view AsBytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Takes a table of `count` entries from the front of `rest`.
template <typename T>
bool Take(std::string_view* rest, size_t count, std::vector<T>* table) {
  if (count > rest->size() / sizeof(T)) return false;
  table->resize(count);
  if (count > 0) std::memcpy(table->data(), rest->data(), count * sizeof(T));
  rest->remove_prefix(count * sizeof(T));
  return true;
}

}  // namespace

Status Parse(const char* data, size_t length, Message* message) {
  Header& header = message->header;
  if (length < sizeof(header)) return Malformed("shorter than its header");
  std::memcpy(&header, data, sizeof(header));
  std::string_view rest(data + sizeof(header), length - sizeof(header));
  if (header.count > kMaxPlaces) return Malformed("too many places");
  const bool places = header.type == Type::kRequest || header.type == Type::kReceiveBuffer;
  if (places ? !Take(&rest, header.count, &message->places)
             : !Take(&rest, header.count, &message->sizes)) {
    return Malformed("shorter than its places");
  }
  if (rest.size() != header.length) return Malformed("of another length than announced");
  if (header.type == Type::kRequest && rest.size() > kMaxRequest) {
    return Malformed("a request too long");
  }
  message->bytes = rest;
  return OkStatus();
}

Frame::Frame(const Header* header, const void* table, size_t table_bytes, std::string_view bytes)
    : parts_{Part(header, sizeof(*header)), Part(table, table_bytes),
             Part(bytes.data(), bytes.size())} {}

std::string EncodeReply(const Reply& reply, const std::vector<uint64_t>& places) {
  const std::string& message = reply.status.message();
  const ReplyHeader header = {
      static_cast<uint32_t>(reply.status.code()), static_cast<uint32_t>(message.size()),
      static_cast<uint32_t>(reply.head.size()), static_cast<uint32_t>(reply.payloads.size())};
  size_t length = sizeof(header) + reply.payloads.size() * sizeof(PayloadEntry) + message.size() +
                  reply.head.size();
  for (size_t i = 0; i < reply.payloads.size(); ++i) {
    if (places[i] == 0) length += reply.payloads[i].bytes;
  }
  std::string text;
  text.reserve(length);
  text.append(AsBytes(header));
  for (size_t i = 0; i < reply.payloads.size(); ++i) {
    text.append(AsBytes(PayloadEntry{reply.payloads[i].bytes, places[i]}));
  }
  text.append(message);
  text.append(reply.head);
  for (size_t i = 0; i < reply.payloads.size(); ++i) {
    if (places[i] == 0) text.append(reply.payloads[i].data, reply.payloads[i].bytes);
  }
  return text;
}

Status DecodeReply(std::string text, Response* response) {
  // The header alone is longer than a string's internal buffer, so moving the response does not
  // move these bytes.
  response->text = std::move(text);
  std::string_view rest = response->text;
  std::vector<ReplyHeader> header;
  std::vector<PayloadEntry> entries;
  if (!Take(&rest, 1, &header) || !Take(&rest, header[0].payloads, &entries)) {
    return Malformed("a reply shorter than its header");
  }
  const auto [code, message_length, head_length, payloads] = header[0];
  if (code > kMaxCode || message_length > rest.size() ||
      head_length > rest.size() - message_length) {
    return Malformed("a reply shorter than its parts");
  }
  response->status =
      code == 0 ? OkStatus()
                : Status(static_cast<Code>(code), std::string(rest.substr(0, message_length)));
  response->head.assign(rest.substr(message_length, head_length));
  rest.remove_prefix(message_length + head_length);
  for (const PayloadEntry& entry : entries) {
    Arrived arrived;
    arrived.bytes = entry.bytes;
    arrived.place = entry.place;
    if (arrived.place == 0) {
      if (entry.bytes > rest.size()) return Malformed("a reply shorter than its payloads");
      arrived.data = const_cast<char*>(rest.data());
      rest.remove_prefix(entry.bytes);
    }
    response->payloads.push_back(std::move(arrived));
  }
  return rest.empty() ? OkStatus() : Malformed("a reply longer than its payloads");
}

}  // namespace rdma_transport::rpc
