// One end of a channel between two members of a group of collectives (`MeshPeer`), before a hostile
// other end: notifications of every kind, in memory that changes while it is read, while this
// member announces steps and sends messages, over fabrics that map memory and over others.

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/log.h"
#include "changing_memory.h"
#include "collectives/mesh_peer.h"
#include "input.h"
#include "scripted_fabric.h"

namespace rdma_transport::collectives {
namespace {

using fuzz::Input;

constexpr int kActions = 48;
constexpr uint64_t kPeersKey = 1;

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Mostly well-formed.
std::string Notification(Input* input) {
  if (input->Below(16) == 0) return input->Bytes(input->Take<uint8_t>());
  Note note;
  note.kind = static_cast<uint32_t>(input->Below(Note::kPong + 2));
  note.tag = static_cast<int32_t>(input->Number()) - 1;
  note.key = input->Number();
  note.length = input->Number();
  if (input->Flag()) note.length = kBoardBytes + input->Below(4) * kPartBytes;
  std::string bytes = input->Bytes(input->Below(32));
  if (note.kind == Note::kCall && input->Below(8) != 0) {
    Descriptor descriptor;
    descriptor.count = input->Number();
    bytes = BytesOf(descriptor) + bytes;
  }
  if (note.kind == Note::kMessage && input->Flag()) {
    note.key = 0;
    note.length = bytes.size();
  } else if (note.kind == Note::kMessage || note.kind == Note::kPiece) {
    note.key = 1 + input->Below(4);
    note.length = 1 + input->Below(3) * 100;
    if (input->Flag()) {
      const uint64_t key = input->Below(4) == 0 ? 0 : kPeersKey;  // 0: read in place
      bytes = BytesOf(
          Piece{note.key, input->Below(3) * 100, 1 + input->Below(2) * 100, key, input->Number()});
    }
  } else if (note.kind == Note::kHello && input->Flag()) {
    static const Seal seal;
    bytes = BytesOf(seal.place());
  } else if (note.kind == Note::kWanted || note.kind == Note::kTaken ||
             note.kind == Note::kUnread) {
    note.key = 1 + input->Below(4);
    note.length = input->Below(3) * kBlockBytes;
    note.tag = static_cast<int32_t>(input->Below(3) * 70'000);
  }
  return BytesOf(note) + bytes;
}

void Deliver(Input* input, MeshPeer* peer) {
  const std::vector<fuzz::Change> changes = fuzz::TakeChanges(input);
  fuzz::WithChangingMemory(Notification(input), changes,
                           [&](const char* data, size_t length) { peer->OnNotify(data, length); });
}

// Messages that travel in a notification, and others that do not; their bytes stay.
using Sent = std::vector<std::unique_ptr<std::string>>;

void SendOne(Input* input, MeshPeer* peer, Sent* sent) {
  const size_t length = input->Flag() ? input->Below(16) : input->Below(3) * kBlockBytes + 70'000;
  sent->push_back(std::make_unique<std::string>(length, 'x'));
  std::shared_ptr<MessageCall> call;
  peer->Send(static_cast<int>(input->Below(4)), *sent->back(), input->Flag(), &call).IgnoreError();
}

// As Mesh::Receive() does.
void ReceiveOne(Input* input, MeshPeer* peer, MeshState* state) {
  const auto receive = std::make_shared<Receive>();
  receive->peer = input->Flag() ? 1 : kAny;
  receive->tag = static_cast<int>(input->Below(3)) - 1;
  std::shared_ptr<Letter> letter;
  {
    std::lock_guard<std::mutex> lock(state->mu);
    letter = state->inbox.Take(receive->peer, receive->tag);
    if (letter == nullptr) return state->inbox.receives.push_back(receive);
    Match(letter.get(), receive);
    if (letter->missing == 0) return;
  }
  peer->Take(letter);
}

void Act(Input* input, MeshPeer* peer, MeshState* state, fuzz::ScriptedChannel* channel,
         Sent* sent) {
  const Patience none = {0, nullptr};
  uint64_t length = 0;
  switch (input->Below(14)) {
    case 0: {
      const uint64_t offset = kBoardBytes + input->Below(8) * kPartBytes;
      Span span = {state->own->region->address() + offset, input->Number() % kPartBytes, 0, offset};
      if (input->Below(4) == 0) span.key = kPeersKey + input->Below(2);  // where its array lies
      peer->Announce({input->Take<uint32_t>(), span, nullptr, 0}, none).IgnoreError();
      return;
    }
    case 1:
      return SendOne(input, peer, sent);
    case 2:
      channel->EndTransfer(input->Below(8) == 0 ? Status(Code::kUnavailable, "failed")
                                                : OkStatus());
      return;
    case 3:
      peer->WaitWritten(input->Below(kParts), none).IgnoreError();
      return;
    case 4: {
      std::lock_guard<std::mutex> lock(state->mu);
      // What a mapping or a replica holds can be read.
      const fabric::MappedSpan* const shared = peer->FindShared(input->Number(), &length);
      if (shared != nullptr && shared->data != nullptr && length > 0 && shared->data[length - 1]) {
        std::abort();
      }
      if (peer->ready()) {
        volatile char last = peer->memory()[kRegionBytes - 1];
        static_cast<void>(last);
      }
      return;
    }
    case 5:
      return peer->CheckAlive();
    case 6:
      return ReceiveOne(input, peer, state);
    case 7:
      return input->Flag() ? peer->Leave() : static_cast<void>(state->Gone(kAny));
    default:
      return Deliver(input, peer);
  }
}

void Run(Input* input) {
  const auto device = std::make_shared<fuzz::ScriptedDevice>(
      fuzz::Manners{/*maps=*/input->Flag(), /*refuses=*/false});
  std::unique_ptr<fabric::Region> region;
  if (!device->Allocate(kRegionBytes, fabric::Access::kRemoteRead, nullptr, &region).ok()) {
    std::abort();
  }
  new (region->address()) Board();
  const auto state = std::make_shared<MeshState>();
  state->own = std::make_shared<OwnRegion>(OwnRegion{device, std::move(region)});
  state->peer_timeout = kSecond;
  state->pool = std::make_shared<BlockPool>(device);
  state->absent.resize(2);
  const auto peer = std::make_shared<MeshPeer>(1, state);
  std::shared_ptr<fabric::Channel> opened;
  if (!device->Open(peer, &opened).ok()) std::abort();
  peer->SetChannel(opened);
  fuzz::ScriptedChannel* const channel = device->channel().get();
  channel->AddRegion(kPeersKey, kRegionBytes);
  if (!opened->Connect("", fabric::Role::kActive).ok()) std::abort();
  Sent sent;
  for (int i = 0; i < kActions && !input->empty(); ++i) {
    Act(input, peer.get(), state.get(), channel, &sent);
  }
  channel->FinishClose(Status(Code::kUnavailable, "over"));
  if (peer->lost().ok()) std::abort();
}

}  // namespace
}  // namespace rdma_transport::collectives

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rdma_transport::SetLogLevel(rdma_transport::LogLevel::kOff);
  rdma_transport::fuzz::Input input(data, size);
  rdma_transport::collectives::Run(&input);
  return 0;
}
