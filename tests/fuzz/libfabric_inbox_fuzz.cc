// What a hostile peer can send over libfabric: the address of its channel, messages of the stream
// and remote data of writes in any order, and the regions that it announces in them.

#include <cstring>
#include <memory>
#include <string>

#include "fabric/libfabric/inbox.h"
#include "fabric/libfabric/transfers.h"
#include "fabric/libfabric/wire.h"
#include "input.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using fuzz::Input;
using fuzz::Require;

constexpr size_t kMaxOperations = 200;
constexpr uint32_t kFrames = 8;
constexpr size_t kLongest = 4096;

// What can be read can be written again, and then means the same.
void ReadAddress(const std::string& bytes) {
  ChannelAddress read;
  if (!ChannelAddress::Decode(bytes, &read).ok()) return;
  ChannelAddress again;
  Require(ChannelAddress::Decode(read.Encode(), &again).ok());
  Require(again.Encode() == read.Encode());
}

// What this side does with a record: see LibfabricChannel::HandleRecord().
Status UseRecord(RecordKind kind, std::string_view record, Transfers* transfers) {
  volatile char seen = 0;
  for (const char byte : record) seen = seen ^ byte;
  Require(record.size() <= host::kLongestNotification);
  if (kind == RecordKind::kRegion) return transfers->AddRegion(record);
  if (kind == RecordKind::kWithdraw) return transfers->RemoveRegion(record);
  return OkStatus();
}

// An operation that is allowed moves its bytes.
void Begin(Input* input, Transfers* transfers) {
  static char local[kLongest];
  const RemoteSpan span = {input->Number(), input->Number(), input->Number()};
  if (span.length > sizeof(local)) return;
  const bool write = input->Flag();
  if (!transfers->Begin(write, span, local, nullptr, 1).ok()) return;
  const auto* waiting = write ? transfers->FrontWrite() : transfers->FrontRead();
  Require((waiting != nullptr) == (span.length > 0));
  if (waiting != nullptr) {
    Require(waiting->local == local && waiting->length == span.length);
    const uint64_t sequence = write ? transfers->started() + 1 : 0;
    write ? transfers->PopWrite() : transfers->PopRead();
    transfers->OnEnded(1, sequence);
  }
  Require(transfers->TakeEnded().size() == 1);
}

MessageHeader Header(Input* input, uint64_t read) {
  MessageHeader header = {};
  // Mostly one that may be right.
  header.sequence = input->Flag() ? read + 1 : read + input->Below(2 * kFrames);
  if (input->Below(16) == 0) header.sequence = input->Take<uint64_t>();
  header.writes = input->Number();
  return header;
}

std::string Content(Input* input) {
  std::string bytes;
  while (input->Flag() && !input->empty()) {
    const auto kind = static_cast<RecordKind>(input->Below(8));
    const std::string record = input->Bytes(input->Below(64));
    // Mostly as long as it says.
    const uint64_t length = input->Below(8) == 0 ? input->Number() : record.size();
    const RecordHeader header = {static_cast<uint32_t>(length), kind};
    bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes += record;
  }
  return bytes + input->Bytes(input->Below(64));
}

void ReadMessages(Input* input) {
  Inbox inbox(kFrames);
  Transfers transfers;
  const auto handle = [&](RecordKind kind, std::string_view record) {
    return UseRecord(kind, record, &transfers);
  };
  Nanos now = 0;
  for (size_t i = 0; i < kMaxOperations && !input->empty(); ++i) {
    ++now;
    const uint64_t read = inbox.read();
    const uint64_t arrived = inbox.arrived();
    Status status;
    switch (input->Below(5)) {
      case 0:
        Begin(input, &transfers);
        break;
      case 4:
        status = inbox.Expect(input->Flag() ? read + input->Below(16) : input->Number(), now);
        break;
      case 1: {
        const auto offset = input->Flag() ? uint64_t{1} : input->Take<uint16_t>();
        status = inbox.TakeWrite(static_cast<uint16_t>(arrived + offset), now, handle);
        break;
      }
      default: {
        const MessageHeader header = Header(input, read);
        // A buffer of exactly that size shows what is read beyond it.
        const std::string bytes = Content(input);
        const auto exact = std::make_unique<char[]>(bytes.size());
        std::memcpy(exact.get(), bytes.data(), bytes.size());
        status = inbox.Take(header, {exact.get(), bytes.size()}, now, handle);
      }
    }
    Require(inbox.read() >= read && inbox.read() <= read + kFrames);
    Require(inbox.arrived() >= arrived);
    Require(inbox.waiting_since() <= now);
    if (!status.ok()) return;
  }
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rdma_transport;
  fuzz::Input input(data, size);
  if (input.Flag()) {
    fabric::libfabric::ReadMessages(&input);
  } else {
    fabric::libfabric::ReadAddress(input.Bytes(size));
  }
  return 0;
}
