#include "protocol/receiver_slots.h"

#include <utility>

#include "protocol/trace.h"

namespace rdma_transport {

// --- Pools ---

void ReceiverSlots::Join(EdgeVariant* variant) {
  std::lock_guard<std::mutex> lock(mu_);
  uint32_t& number = by_bytes_[variant->bytes];
  if (number == 0) number = next_number_++;
  Pool& pool = pools_[number];
  pool.bytes = variant->bytes;
  ++pool.edges;
  variant->receiver_pool = number;
}

void ReceiverSlots::Leave(const EdgeVariant& variant) {
  std::lock_guard<std::mutex> lock(mu_);
  Pool* pool = FindLocked(variant.receiver_pool);
  if (--pool->edges > 0) return;
  by_bytes_.erase(pool->bytes);
  pools_.erase(variant.receiver_pool);
}

void ReceiverSlots::OnDeclared(const EdgeVariant& variant, uint32_t slots) {
  uint32_t more = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Pool* pool = FindLocked(variant.receiver_pool);
    const uint32_t wanted = memory::SlotsOfPool(pool->edges, slots);
    if (pool->requested >= wanted) return;
    more = wanted - std::exchange(pool->requested, wanted);
  }
  SendRequest(variant.receiver_pool, more);
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

void ReceiverSlots::Report(const EdgeVariant& variant, EdgeReport* report) const {
  report->at_receiver = true;
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = pools_.find(variant.receiver_pool);
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

// --- Tensors ---

bool ReceiverSlots::Send(const std::string& key, EdgeVariant* variant, Outgoing* tensor,
                         SendOutcome* outcome) {
  const uint32_t pool = variant->receiver_pool;
  StaticMessage message = {};
  fabric::RemoteSpan place;
  const char* none = Take(pool, &message.slot, &place);
  if (none != nullptr) return Miss(variant, none);
  fabric::RemoteSpan local;
  // What the processor copies may change afterwards, but the checksum must match what is copied.
  const bool stage = channel_->Copies()
                         ? tensor->mutable_source && context_.settings->checksum
                         : tensor->mutable_source || !channel_->Locate(tensor->data, &local) ||
                               local.length < tensor->bytes;
  if (stage && !StageFor(key, variant, tensor)) {
    Return(pool, message.slot);
    return Miss(variant, "no memory in the arena");
  }
  uint64_t cookie = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    cookie = ++next_cookie_;
    writing_[cookie] = {std::move(tensor->owner), Now()};
  }
  outcome->status = channel_->Write(tensor->data, place, cookie);
  if (!outcome->status.ok()) {
    Return(pool, message.slot);
    {
      std::lock_guard<std::mutex> lock(mu_);
      tensor->owner = std::move(writing_[cookie].source);
      writing_.erase(cookie);
    }
    if (outcome->status.code() != Code::kResourceExhausted) return true;
    outcome->status = OkStatus();
    return Miss(variant, "its memory cannot be registered");
  }
  if (channel_->Copies()) {
    GlobalCounters().copied_bytes.fetch_add(tensor->bytes, std::memory_order_relaxed);
  }
  outcome->handle = CreditOf(pool, message.slot) | Trace::kCreditBit;
  Announce(message, variant, *tensor, fabric::After::Write(cookie), outcome);
  if (!outcome->status.ok()) ReturnWritten(pool, message.slot);
  return true;
}

void ReceiverSlots::OnWritten(uint64_t cookie, const Status& status) {
  Writing written;  // dropped after unlocking
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = writing_.find(cookie);
  if (found == writing_.end()) return;
  written = std::move(found->second);
  writing_.erase(found);
  if (status.ok()) context_.traffic->write_time.Add(Now() - written.begin);
}

void ReceiverSlots::Abandon() {
  decltype(writing_) written;
  {
    std::lock_guard<std::mutex> lock(mu_);
    written.swap(writing_);
  }
  for (auto& [cookie, writing] : written) channel_->Keep(std::move(writing.source));
}

}  // namespace rdma_transport
