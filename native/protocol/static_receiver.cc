#include "protocol/static_receiver.h"

#include <algorithm>
#include <utility>

#include "protocol/counters.h"
#include "protocol/map_receiver_owned.h"
#include "protocol/poller.h"
#include "protocol/release.h"

namespace rdma_transport {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxDescribedBytes = size_t{64} << 20;

Status Broken(const char* what) { return Status(Code::kDataLoss, what); }

}  // namespace

Status StaticReceiver::OnEdge(const TensorMessage& message) {
  const auto& [number, pool] = message.header.edge;
  if (number == 0) return Broken("an edge without a number");
  if (Find(number) != nullptr) return Broken("an edge that was declared already");
  if (edges_.size() >= kMaxEdges) return Broken("too many static edges");
  const size_t bytes = message.key.size() + message.dims.size() * sizeof(int64_t);
  if (described_bytes_ + bytes > kMaxDescribedBytes) {
    return Broken("static edges with keys and shapes that are too long");
  }
  if (pool != 0) RDMA_RETURN_IF_ERROR(JoinPool(pool, message.header.bytes));
  described_bytes_ += bytes;
  Edge& edge = edges_[number];
  edge.spec = {message.key, message.header.dtype, message.dims, message.header.bytes};
  edge.key = KeyId::OfEdge(message.key);
  edge.usual_key = edge.key.WithSuffix(kUsualSuffix);
  edge.pool = pool;
  return OkStatus();
}

Status StaticReceiver::JoinPool(uint32_t number, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  Pool& pool = pools_[number];
  if (pool.edges > 0 && pool.bytes != bytes) return Broken("a pool with slots of different sizes");
  pool.bytes = bytes;
  ++pool.edges;
  return OkStatus();
}

void StaticReceiver::OnRetire(uint32_t number) {
  const auto found = edges_.find(number);
  if (found == edges_.end()) return;
  const EdgeSpec& spec = found->second.spec;
  described_bytes_ -= spec.key.size() + spec.dims.size() * sizeof(int64_t);
  std::lock_guard<std::mutex> lock(mu_);
  const auto pool = pools_.find(found->second.pool);
  if (pool != pools_.end() && --pool->second.edges == 0) pools_.erase(pool);
  edges_.erase(found);
}

void StaticReceiver::Abandon() {
  for (auto& [number, edge] : edges_) {
    for (Slot& slot : edge.slots) slot.mapped = {};
  }
}

bool StaticReceiver::HasReceiverSlots() const {
  std::lock_guard<std::mutex> lock(mu_);
  return std::any_of(pools_.begin(), pools_.end(),
                     [](const auto& entry) { return !entry.second.slots.empty(); });
}

Status StaticReceiver::OnRequestSlots(uint32_t pool, uint32_t count,
                                      std::shared_ptr<const void> link) {
  std::unique_lock<std::mutex> lock(mu_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return OkStatus();  // its edges were removed in the meantime
  Pool& wanted = found->second;
  const uint64_t bytes = wanted.bytes;
  if (bytes == 0) return OkStatus();
  count = std::min(count, memory::MaxReceiverSlots(wanted.edges));
  for (; count > 0; --count) {
    char* memory = context_.receive_arena->AllocateIfThere(bytes);
    if (memory == nullptr) break;
    RDMA_RETURN_IF_ERROR(ProvideSlotLocked(found->first, &wanted, Hold(memory)));
  }
  lock.unlock();
  if (count > 0) MakeElsewhere(pool, bytes, count, std::move(link));
  return OkStatus();
}

StaticReceiver::SlotMemory StaticReceiver::Hold(char* memory) const {
  return SlotMemory(memory, [arena = context_.receive_arena](const void* held) {
    arena->Free(static_cast<char*>(const_cast<void*>(held)));
  });
}

// A slab takes a second for each GiB, and other peers must be polled meanwhile.
void StaticReceiver::MakeElsewhere(uint32_t number, uint64_t bytes, uint32_t count,
                                   std::shared_ptr<const void> link) {
  std::function<void()> make = [this, number, count, bytes, link = std::move(link)] {
    Poller::LongWorkAhead();
    for (uint32_t i = 0; i < count; ++i) {
      char* memory = context_.receive_arena->Allocate(bytes);
      if (memory == nullptr) return;
      SlotMemory slot = Hold(memory);
      std::lock_guard<std::mutex> lock(mu_);
      const auto found = pools_.find(number);
      if (found == pools_.end()) return;  // its edges were removed in the meantime
      const Status provided = ProvideSlotLocked(number, &found->second, std::move(slot));
      if (!provided.ok()) return channel_->Close(provided);
    }
  };
  if (!Poller::Defer(&make)) make();
}

// Gives the memory back if the slot is not wanted any more, or the sender cannot use it.
Status StaticReceiver::ProvideSlotLocked(uint32_t number, Pool* pool, SlotMemory slot) {
  if (pool->slots.size() >= memory::MaxReceiverSlots(pool->edges)) return OkStatus();
  fabric::RemoteSpan span;
  if (!channel_->Locate(slot.get(), &span)) return OkStatus();
  const Status shared = channel_->Share(span.key);
  if (shared.code() == Code::kResourceExhausted) return OkStatus();  // registration failed
  RDMA_RETURN_IF_ERROR(shared);
  PoolSlotMessage message = {};
  message.type = MessageType::kPoolSlot;
  message.slot = static_cast<uint16_t>(pool->slots.size());
  message.pool = number;
  message.region_key = span.key;
  message.region_offset = span.offset;
  const iovec part = {&message, sizeof(message)};
  RDMA_RETURN_IF_ERROR(channel_->Notify(&part, 1, fabric::Urgency::kLazy));
  pool->slots.push_back(std::move(slot));
  return OkStatus();
}

Status StaticReceiver::OnReturnSlot(uint64_t credit) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = pools_.find(static_cast<uint32_t>(credit >> 16));
  if (found == pools_.end()) return OkStatus();  // its edges were removed in the meantime
  if ((credit & 0xffff) >= found->second.slots.size()) {
    return Broken("the return of a slot that was not agreed on");
  }
  ControlMessage message(MessageType::kCredit);
  message.credit = credit;
  notifier_->SendControl(message, fabric::Urgency::kLazy);
  return OkStatus();
}

Status StaticReceiver::OnSlot(const SlotMessage& message) {
  Edge* found = Find(message.edge);
  if (found == nullptr || found->pool != 0 || message.slot >= memory::kMaxSlots) {
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
  const Edge* found = Find(message.edge);
  if (found == nullptr) return Broken("a tensor of an edge that was not declared");
  const Edge& edge = *found;
  const bool usual = (message.flags & kOwnSuffix) == 0;
  *key = usual ? edge.usual_key : edge.key.WithSuffix(suffix);
  Delivery& delivery = arrival->delivery;
  delivery.mode = Mode::kStatic;
  delivery.dtype = edge.spec.dtype;
  delivery.dims = edge.spec.dims;
  delivery.bytes = edge.spec.bytes;
  delivery.dead = (message.flags & kDead) != 0;
  return edge.pool != 0 ? TakeFromPool(edge.pool, message, &delivery)
                        : TakeFromSource(edge, message, arrival);
}

Status StaticReceiver::TakeFromPool(uint32_t pool, const StaticMessage& message,
                                    Delivery* delivery) {
  SlotMemory slot;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto& slots = pools_.at(pool).slots;
    if (message.slot >= slots.size()) return Broken("a tensor in a slot that was not agreed on");
    slot = slots[message.slot];
  }
  delivery->data = static_cast<const char*>(slot.get());
  delivery->exclusive = true;
  delivery->owner = ReturnSlotOnDrop(notifier_, CreditOf(pool, message.slot), std::move(slot));
  // Others read into memory of their own, from which it would be copied as from the slot.
  const bool reads = !channel_->Copies() && !channel_->OutlivedByTransfers();
  if (reads) delivery->read_later = {notifier_, message.edge};
  return OkStatus();
}

Status StaticReceiver::TakeFromSource(const Edge& edge, const StaticMessage& message,
                                      Arrival* arrival) {
  if (message.slot >= edge.slots.size()) return Broken("a tensor in a slot that was not agreed on");
  const Slot& slot = edge.slots[message.slot];
  if (slot.generation != message.generation) {
    return Broken("a tensor in a slot that has been reassigned");
  }
  Delivery& delivery = arrival->delivery;
  delivery.owner =
      ReleaseBufferOnDrop(notifier_, message.buffer_id, fabric::Urgency::kLazy, slot.mapped.holder);
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
