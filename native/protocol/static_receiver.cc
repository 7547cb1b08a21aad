#include "protocol/static_receiver.h"

#include <algorithm>
#include <utility>

#include "protocol/counters.h"
#include "protocol/lease.h"
#include "protocol/map_receiver_owned.h"

namespace rdma_transport {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxDescribedBytes = size_t{64} << 20;

Status Broken(const char* what) { return Status(Code::kDataLoss, what); }

}  // namespace

Status StaticReceiver::OnEdge(const TensorMessage& message) {
  const uint64_t number = message.header.buffer_id;
  if (number == 0 || number > UINT32_MAX) return Broken("an edge of an impossible number");
  if (Edge* known = Find(static_cast<uint32_t>(number)); known != nullptr) {
    // The sender ran out of slots.
    if (!known->at_receiver) return Broken("an edge that was declared already");
    return ProvideSlots(static_cast<uint32_t>(number), known, message.header.slots);
  }
  if (edges_.size() >= kMaxEdges) return Broken("too many static edges");
  const size_t bytes = message.key.size() + message.dims.size() * sizeof(int64_t);
  if (described_bytes_ + bytes > kMaxDescribedBytes) {
    return Broken("static edges with keys and shapes of an impossible length");
  }
  described_bytes_ += bytes;
  Edge& edge = edges_[static_cast<uint32_t>(number)];
  edge.spec = {message.key, message.header.dtype, message.dims, message.header.bytes};
  edge.key = KeyId::OfEdge(message.key);
  edge.usual_key = edge.key.WithSuffix(kUsualSuffix);
  edge.at_receiver = (message.header.flags & kReceiver) != 0;
  if (!edge.at_receiver) return OkStatus();
  return ProvideSlots(static_cast<uint32_t>(number), &edge, message.header.slots);
}

void StaticReceiver::OnRetire(uint64_t number) {
  if (number > UINT32_MAX) return;
  const auto found = edges_.find(static_cast<uint32_t>(number));
  if (found == edges_.end()) return;
  const EdgeSpec& spec = found->second.spec;
  described_bytes_ -= spec.key.size() + spec.dims.size() * sizeof(int64_t);
  edges_.erase(found);
}

void StaticReceiver::Abandon() {
  for (auto& [number, edge] : edges_) {
    for (Slot& slot : edge.slots) slot.mapped = {};
  }
}

bool StaticReceiver::HasReceiverSlots() const {
  return std::any_of(edges_.begin(), edges_.end(), [](const auto& entry) {
    return entry.second.at_receiver && !entry.second.slots.empty();
  });
}

// Provides as many slots as there is memory for. Without slots, the edge stays dynamic.
Status StaticReceiver::ProvideSlots(uint32_t number, Edge* edge, uint32_t count) {
  memory::Arena* arena = context_.receive_arena;
  for (uint32_t i = 0; i < count && edge->slots.size() < memory::kMaxReceiverSlots; ++i) {
    char* memory = edge->spec.bytes == 0 ? nullptr : arena->Allocate(edge->spec.bytes);
    Slot slot;
    if (memory == nullptr) return OkStatus();
    slot.memory = std::shared_ptr<const void>(memory, [arena](const void* held) {
      arena->Free(static_cast<char*>(const_cast<void*>(held)));
    });
    if (!channel_->Locate(memory, &slot.span)) return OkStatus();
    const Status shared = channel_->Share(slot.span.key);
    if (shared.code() == Code::kResourceExhausted) return OkStatus();  // registration failed
    RDMA_RETURN_IF_ERROR(shared);
    slot.generation = 1;
    SlotMessage message = {};
    message.type = MessageType::kSlot;
    message.flags = kReceiver;
    message.slot = static_cast<uint16_t>(edge->slots.size());
    message.edge = number;
    message.region_key = slot.span.key;
    message.region_offset = slot.span.offset;
    message.generation = slot.generation;
    const iovec part = {&message, sizeof(message)};
    const Status told = channel_->Notify(&part, 1, fabric::Urgency::kLazy);
    if (told.code() == Code::kResourceExhausted)
      return OkStatus();  // too many notifications are queued
    RDMA_RETURN_IF_ERROR(told);
    edge->slots.push_back(std::move(slot));
  }
  return OkStatus();
}

Status StaticReceiver::OnSlot(const SlotMessage& message) {
  Edge* found = Find(message.edge);
  if (found == nullptr || found->at_receiver || message.slot >= memory::kMaxSlots) {
    return Broken("a slot of an edge that has none");
  }
  Edge& edge = *found;
  if (message.slot > edge.slots.size()) return Broken("a slot out of order");
  if (message.slot == edge.slots.size()) edge.slots.emplace_back();
  Slot& slot = edge.slots[message.slot];
  slot.generation = message.generation;
  slot.span = {message.region_key, message.region_offset, edge.spec.bytes};
  slot.mapped = (message.flags & kReceiverOwned) != 0
                    ? MapReceiverOwned(context_.device, *channel_, slot.span)
                    : channel_->Map(slot.span);
  if (slot.mapped.data == nullptr ||
      reinterpret_cast<uintptr_t>(slot.mapped.data) % kAlignment != 0) {
    slot.mapped = {};  // tensors in it are refused
  }
  return OkStatus();
}

Status StaticReceiver::OnStatic(const StaticMessage& message, std::string_view suffix,
                                Arrival* arrival, KeyId* key) {
  Edge* found = Find(message.edge);
  if (found == nullptr || message.slot >= found->slots.size()) {
    return Broken("a tensor in a slot that was not agreed on");
  }
  Edge& edge = *found;
  const Slot& slot = edge.slots[message.slot];
  if (slot.generation != message.generation) {
    return Broken("a tensor in a slot that means another place by now");
  }
  const bool usual = (message.flags & kOwnSuffix) == 0;
  *key = usual ? edge.usual_key : edge.key.WithSuffix(suffix);
  Delivery& delivery = arrival->delivery;
  delivery.mode = Mode::kStatic;
  delivery.dtype = edge.spec.dtype;
  delivery.dims = edge.spec.dims;
  delivery.bytes = edge.spec.bytes;
  delivery.dead = (message.flags & kDead) != 0;
  if (!edge.at_receiver) return TakeFromSource(slot, message, arrival);
  delivery.data = static_cast<const char*>(slot.memory.get());
  delivery.lease = LeaseSlot(notifier_, CreditOf(message.edge, message.slot), slot.memory);
  return OkStatus();
}

Status StaticReceiver::TakeFromSource(const Slot& slot, const StaticMessage& message,
                                      Arrival* arrival) {
  Delivery& delivery = arrival->delivery;
  delivery.lease =
      LeaseBuffer(notifier_, message.buffer_id, fabric::Urgency::kLazy, slot.mapped.holder);
  if (slot.mapped.data == nullptr) {
    delivery.status = Status(Code::kResourceExhausted,
                             "a slot of a peer cannot be mapped here (limits on memory or open "
                             "files?)");
    return OkStatus();
  }
  if (!context_.settings->zero_copy) {
    arrival->channel = channel_;
    arrival->source = slot.span;
    return OkStatus();
  }
  delivery.data = slot.mapped.data;
  return OkStatus();
}

}  // namespace rdma_transport
