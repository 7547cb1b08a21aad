// The ring of notifications of the verbs fabric before a peer that writes into it whatever it
// likes, and says so with any immediate value; and the credits and regions that such a peer gives.

#include <arpa/inet.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fabric/host/transfer_base.h"
#include "fabric/verbs/ring.h"
#include "input.h"

namespace rdma_transport::fabric::verbs {
namespace {

using fuzz::Input;
using fuzz::Require;

constexpr size_t kMaxOperations = 200;

using Transfers = host::TransferBase<RegionRecord>;

// What this side does with a record: see VerbsChannel::HandleRecord().
void UseRecord(RecordKind kind, std::string_view record, Transfers* transfers) {
  volatile char receive_arena = 0;
  for (const char byte : record) receive_arena = receive_arena ^ byte;
  if (kind == RecordKind::kRegion) transfers->AddRegion(record).IgnoreError();
  if (kind == RecordKind::kWithdraw) transfers->RemoveRegion(record).IgnoreError();
}

// An operation that is let pass lies in what the peer announced.
void Check(Input* input, const Transfers& transfers) {
  const Access access = input->Flag() ? Access::kRemoteReadWrite : Access::kRemoteRead;
  const RemoteSpan span = {input->Number(), input->Number(), input->Number()};
  const RegionRecord* region = nullptr;
  if (!transfers.Check(span, access, &region).ok()) return;
  Require(span.offset <= region->length && span.length <= region->length - span.offset);
  Require(access == Access::kRemoteRead || region->writable != 0);
}

void WriteIntoRing(Input* input, char* ring, uint64_t size) {
  const uint64_t offset = input->Take<uint16_t>() * uint64_t{8} % size;
  std::string bytes;
  if (input->Flag()) {
    const RecordHeader header = {static_cast<uint32_t>(input->Number()),
                                 static_cast<RecordKind>(input->Below(8))};
    bytes.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  }
  bytes += input->Bytes(input->Below(64));
  std::memcpy(ring + offset, bytes.data(), std::min<uint64_t>(bytes.size(), size - offset));
}

// The reader of a ring of exactly that size.
void ReadHostileRing(Input* input) {
  const uint64_t size = (input->Below(4) + 1) * 16 * kUnit;
  const auto ring = std::make_unique<char[]>(size);  // zeroes
  RingReader reader;
  reader.Attach(ring.get(), size, static_cast<uint32_t>(input->Below(20) + 1));
  Transfers transfers;
  for (size_t i = 0; i < kMaxOperations && !input->empty(); ++i) {
    switch (input->Below(4)) {
      case 0:
        WriteIntoRing(input, ring.get(), size);
        continue;
      case 1:
        Check(input, transfers);
        continue;
      default:
        break;
    }
    // As often as not an immediate value that may be right.
    const uint32_t value = input->Flag() ? input->Take<uint32_t>() : input->Below(33);
    if (!reader.Begin(Immediate::Decode(value)).ok()) return;
    RecordKind kind{};
    std::string_view record;
    bool more = true;
    while (more) {
      if (!reader.Next(&kind, &record, &more).ok()) return;
      if (!more) break;
      Require(record.data() >= ring.get() && record.data() + record.size() <= ring.get() + size);
      UseRecord(kind, record, &transfers);
    }
    Immediate credit;
    while (reader.TakeCredit(&credit)) {
      Require(Immediate::Decode(credit.Encode()).units == credit.units);
    }
  }
}

// The writer, whose peer gives credits as it likes.
void WriteForHostileReader(Input* input) {
  const uint64_t size = (input->Below(4) + 1) * 16 * kUnit;
  const auto mirror = std::make_unique<char[]>(size);
  RingWriter writer;
  writer.Attach(mirror.get(), size, static_cast<uint32_t>(input->Below(20) + 1));
  std::vector<Batch> sent;
  for (size_t i = 0; i < kMaxOperations && !input->empty(); ++i) {
    switch (input->Below(4)) {
      case 0: {
        const std::string bytes(std::min<size_t>(input->Take<uint16_t>(), writer.LargestRecord()),
                                'r');
        const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
        writer.Append(RecordKind::kNotification, &part, 1, bytes.size());
        break;
      }
      case 1: {
        Batch batch;
        if (!writer.Close(&batch)) break;
        Require(batch.offset + batch.length <= size);
        sent.push_back(batch);
        break;
      }
      case 2:
        if (sent.empty()) break;
        writer.OnWritten(sent.front().end);
        sent.erase(sent.begin());
        break;
      default: {
        const uint32_t value = input->Flag() ? input->Take<uint32_t>() : input->Below(40);
        if (!writer.OnCredit(Immediate::Decode(value)).ok()) return;
      }
    }
    Require(writer.Used() <= size);
  }
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rdma_transport;
  fuzz::Input input(data, size);
  if (input.Flag()) {
    fabric::verbs::ReadHostileRing(&input);
  } else {
    fabric::verbs::WriteForHostileReader(&input);
  }
  return 0;
}
