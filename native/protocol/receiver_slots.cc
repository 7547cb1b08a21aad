#include "protocol/receiver_slots.h"

#include <utility>

#include "protocol/counters.h"

namespace rdma_transport {

uint32_t ReceiverSlots::Join(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  uint32_t& number = by_bytes_[bytes];
  if (number == 0) number = next_number_++;
  Pool& pool = pools_[number];
  pool.bytes = bytes;
  ++pool.edges;
  return number;
}

void ReceiverSlots::Leave(uint32_t number) {
  std::lock_guard<std::mutex> lock(mu_);
  Pool* pool = FindLocked(number);
  if (--pool->edges > 0) return;
  by_bytes_.erase(pool->bytes);
  pools_.erase(number);
}

void ReceiverSlots::Request(uint32_t number, uint32_t slots) {
  uint32_t more = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Pool* pool = FindLocked(number);
    const uint32_t wanted = memory::SlotsOfPool(pool->edges, slots);
    if (pool->requested >= wanted) return;
    more = wanted - std::exchange(pool->requested, wanted);
  }
  SendRequest(number, more);
}

const char* ReceiverSlots::Take(uint32_t number, uint16_t* slot, fabric::RemoteSpan* span) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    Pool* pool = FindLocked(number);
    if (!pool->free.empty()) {
      *slot = pool->free.back();
      pool->free.pop_back();
      pool->slots[*slot].busy = true;
      *span = pool->slots[*slot].span;
      return nullptr;
    }
    if (pool->slots.empty()) return "no slots agreed yet";
    if (pool->requested >= memory::MaxReceiverSlots(pool->edges)) return "no free slot";
    ++pool->requested;
  }
  SendRequest(number, 1);
  return "no free slot";
}

void ReceiverSlots::Return(uint32_t number, uint16_t slot) {
  OnCredit(CreditOf(number, slot)).IgnoreError();
}

void ReceiverSlots::ReturnWritten(uint32_t number, uint16_t slot) {
  ControlMessage message(MessageType::kReturnSlot);
  message.credit = CreditOf(number, slot);
  notifier_->SendControl(message, fabric::Urgency::kLazy);
}

Status ReceiverSlots::OnSlot(const PoolSlotMessage& message) {
  const fabric::RemoteSpan place = {message.region_key, message.region_offset, 0};
  // The region must be known before the first write, and only this thread may look for it.
  channel_->Map(place);
  std::lock_guard<std::mutex> lock(mu_);
  Pool* pool = FindLocked(message.pool);
  if (pool == nullptr) return OkStatus();  // removed in the meantime
  if (message.slot != pool->slots.size() || pool->slots.size() >= pool->requested) {
    return Status(Code::kDataLoss, "a slot that was not requested");
  }
  pool->slots.push_back({{place.key, place.offset, pool->bytes}});
  // Below the others, whose memory has been used before.
  pool->free.insert(pool->free.begin(), message.slot);
  GlobalCounters().plan.slot_allocations.fetch_add(1, std::memory_order_relaxed);
  return OkStatus();
}

Status ReceiverSlots::OnCredit(uint64_t credit) {
  const uint64_t slot = credit & 0xffff;
  std::lock_guard<std::mutex> lock(mu_);
  Pool* pool = FindLocked(static_cast<uint32_t>(credit >> 16));
  if (pool == nullptr) return OkStatus();  // removed in the meantime
  if (slot >= pool->slots.size() || !std::exchange(pool->slots[slot].busy, false)) {
    return Status(Code::kDataLoss, "a credit for a slot that is not in use");
  }
  pool->free.push_back(static_cast<uint16_t>(slot));
  return OkStatus();
}

uint64_t ReceiverSlots::PromisedBytes() const {
  std::lock_guard<std::mutex> lock(mu_);
  uint64_t promised = 0;
  for (const auto& [number, pool] : pools_) promised += pool.bytes * pool.requested;
  return promised;
}

void ReceiverSlots::Report(uint32_t number, EdgeReport* report) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = pools_.find(number);
  if (found == pools_.end()) return;
  report->slots = found->second.slots.size();
  report->busy = report->slots - found->second.free.size();
}

ReceiverSlots::Pool* ReceiverSlots::FindLocked(uint32_t number) {
  const auto found = pools_.find(number);
  return found == pools_.end() ? nullptr : &found->second;
}

// May be delayed: the receiver is not waiting for it, and the tensor that found no slot follows.
void ReceiverSlots::SendRequest(uint32_t number, uint32_t slots) {
  ControlMessage message(MessageType::kRequestSlots);
  message.pool = number;
  message.count = slots;
  notifier_->SendControl(message, fabric::Urgency::kLazy);
}

}  // namespace rdma_transport
