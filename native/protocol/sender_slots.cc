#include "protocol/sender_slots.h"

#include <algorithm>
#include <utility>

namespace rdma_transport {
namespace {

constexpr uint32_t kMaxUnknownBuffers = 256;  // unknown buffers in a row, which show no pattern
constexpr int kTracedAllocations = 4096;

}  // namespace

void SenderSlots::OnDeclared(const EdgeVariant&, uint32_t) {
  context_.slots->StartTracing(kTracedAllocations);
}

void SenderSlots::Plan(EdgeVariant* variant, const PlannedEdge& planned) {
  variant->pools = planned.pools;
  variant->joins_pool = planned.joins_pool;
  for (const auto& pool : planned.pools) AdoptBlocks(variant, *pool);
}

void SenderSlots::Plan(EdgeVariant* variant, const EdgePlan& plan) {
  if (!plan.site.empty()) AddPool(variant, plan.site, variant->bytes);
}

bool SenderSlots::Send(const std::string& key, EdgeVariant* variant, Outgoing* tensor,
                       SendOutcome* outcome) {
  fabric::RemoteSpan span;
  const bool receiver_owned = !tensor->mutable_source && channel_->Owns(tensor->data, &span);
  if (!receiver_owned && (tensor->mutable_source || !channel_->Locate(tensor->data, &span) ||
                          span.length < tensor->bytes)) {
    if (!StageFor(key, variant, tensor) || !channel_->Locate(tensor->data, &span)) {
      return Miss(variant, "no memory in the arena");
    }
  }
  Slot* slot = SlotFor(variant, *tensor, span, receiver_owned);
  if (slot == nullptr) return false;
  slot->used = ++variant->clock;
  StaticMessage message = {};
  message.slot = static_cast<uint16_t>(slot - variant->slots.data());
  message.generation = slot->generation;
  message.buffer_id = outcome->handle = outstanding_->Add(std::move(tensor->owner));
  Announce(message, variant, *tensor, fabric::After::Nothing(), outcome);
  if (!outcome->status.ok()) outstanding_->Release(message.buffer_id);
  return true;
}

EdgeVariant::Slot* SenderSlots::SlotFor(EdgeVariant* variant, const Outgoing& tensor,
                                        const fabric::RemoteSpan& span, bool receiver_owned) {
  for (Slot& slot : variant->slots) {
    if (slot.data == tensor.data && slot.span.key == span.key &&
        slot.receiver_owned == receiver_owned) {
      variant->unknown_buffers = 0;
      return &slot;
    }
  }
  if (++variant->unknown_buffers > kMaxUnknownBuffers) {
    // A descriptor costs no more than agreeing on a slot for each tensor.
    Miss(variant, "its buffer address is not stable");
    return nullptr;
  }
  if (!receiver_owned) FollowToSite(variant, tensor);
  return Adopt(variant, tensor.data, span, receiver_owned);
}

// From now on the operation that allocated this buffer gets its memory from a pool.
void SenderSlots::FollowToSite(EdgeVariant* variant, const Outgoing& tensor) {
  const char* block = tensor.block != nullptr ? tensor.block : tensor.data;
  if (variant->joins_pool && !variant->pools.empty() && block == tensor.data) {
    variant->joins_pool = false;
    context_.slots->Join(variant->pools.front().get(), const_cast<char*>(block));
    return;
  }
  std::string site;
  size_t bytes = 0;
  if (context_.slots->SiteOf(block, &site, &bytes)) {
    AddPool(variant, site, bytes);
  } else {
    context_.slots->StartTracing(kTracedAllocations);
  }
}

// Agrees on all blocks of the pool in advance.
void SenderSlots::AdoptBlocks(EdgeVariant* variant, const memory::SlotPool& pool) {
  if (pool.bytes() != variant->bytes) return;  // the tensor is only part of the allocation
  for (const char* block : pool.Blocks()) {
    fabric::RemoteSpan span;
    if (variant->slots.size() < memory::kMaxSlots && channel_->Locate(block, &span)) {
      Adopt(variant, block, span, /*receiver_owned=*/false);
    }
  }
}

EdgeVariant::Slot* SenderSlots::Adopt(EdgeVariant* variant, const char* data,
                                      const fabric::RemoteSpan& span, bool receiver_owned) {
  if (!receiver_owned && !channel_->Share(span.key).ok()) return nullptr;
  Slot* slot = nullptr;
  for (Slot& known : variant->slots) {
    if (known.data == data && known.receiver_owned == receiver_owned)
      slot = &known;  // same address, mapped again
  }
  const bool made = slot == nullptr && variant->slots.size() < memory::kMaxSlots;
  if (made) slot = &variant->slots.emplace_back();
  if (slot == nullptr) {
    slot = &*std::min_element(variant->slots.begin(), variant->slots.end(),
                              [](const Slot& a, const Slot& b) { return a.used < b.used; });
  }
  slot->data = data;
  slot->span = span;
  slot->receiver_owned = receiver_owned;
  ++slot->generation;
  SlotMessage message = {};
  message.type = MessageType::kSlot;
  message.flags = receiver_owned ? kReceiverOwned : 0;
  message.slot = static_cast<uint16_t>(slot - variant->slots.data());
  message.edge = variant->number;
  message.region_key = span.key;
  message.region_offset = span.offset;
  message.generation = slot->generation;
  const iovec part = {&message, sizeof(message)};
  if (!channel_->Notify(&part, 1, fabric::Urgency::kLazy).ok()) {
    slot->data = nullptr;                 // matches no buffer
    if (made) variant->slots.pop_back();  // the receiver numbers slots by counting
    return nullptr;
  }
  GlobalCounters().plan.slot_allocations.fetch_add(1, std::memory_order_relaxed);
  return slot;
}

}  // namespace rdma_transport
