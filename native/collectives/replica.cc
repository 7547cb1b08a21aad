#include "collectives/replica.h"

#include <cstring>
#include <new>

#include "collectives/algorithm.h"
#include "collectives/progress.h"

namespace rdma_transport::collectives {

Status Replica::Open(fabric::Device* device) {
  const size_t granule = device->RegionGranule();
  const size_t length = (kRegionBytes + granule - 1) / granule * granule;
  RDMA_RETURN_IF_ERROR(
      device->Allocate(length, fabric::Access::kRemoteReadWrite, nullptr, &region_));
  new (region_->address()) Board();
  return OkStatus();
}

bool Replica::Take(const Note& note, std::string_view bytes, Board* own, int rank) {
  if (region_ == nullptr) return false;
  auto* const board = reinterpret_cast<Board*>(region_->address());
  if (note.kind == Note::kCall) {
    if (note.tag < 0 || note.tag > 1 || bytes.size() < sizeof(Descriptor)) return false;
    std::memcpy(&board->descriptors[note.tag], bytes.data(), sizeof(Descriptor));
    bytes.remove_prefix(sizeof(Descriptor));
  }
  if (!bytes.empty()) {
    if (note.length < kBoardBytes || note.length > kRegionBytes ||
        bytes.size() > kRegionBytes - note.length) {
      return false;
    }
    std::memcpy(region_->address() + note.length, bytes.data(), bytes.size());
  }
  Progress::Set(board, static_cast<uint32_t>(note.key), own, rank);
  return true;
}

Status Replica::Send(const Announcement& announcement, fabric::Channel* channel, bool* written,
                     uint64_t* number) {
  const Span& span = announcement.span;
  const bool elsewhere = span.key != 0;
  const bool inlined = span.length <= kMaxInline && !elsewhere;
  if (span.length > 0 && !inlined && !*written) {
    const size_t part = elsewhere ? 0 : PartAt(span.offset);
    const uint64_t key = elsewhere ? span.key : target_;
    writing_[part].fetch_add(1);
    const Status started = channel->Write(span.from, {key, span.offset, span.length},
                                          kFirstCookie + ++writes_ * kParts + part);
    if (!started.ok()) {
      writing_[part].fetch_sub(1);
      return started;
    }
    *written = true;
  }
  Note note;
  note.kind = announcement.descriptor == nullptr ? Note::kStep : Note::kCall;
  note.tag = announcement.parity;
  note.key = announcement.step;
  note.length = span.offset;
  iovec parts[3] = {{&note, sizeof(note)}};
  int count = 1;
  if (announcement.descriptor != nullptr) {
    parts[count++] = {const_cast<Descriptor*>(announcement.descriptor), sizeof(Descriptor)};
  }
  if (inlined && span.length > 0) parts[count++] = {const_cast<char*>(span.from), span.length};
  return channel->Notify(parts, count, fabric::Urgency::kWake, number);
}

bool Replica::OnTransfer(uint64_t cookie) {
  return writing_[cookie % kParts].fetch_sub(1, std::memory_order_acq_rel) == 1;
}

}  // namespace rdma_transport::collectives
