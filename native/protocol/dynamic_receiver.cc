#include "protocol/dynamic_receiver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "memory/block.h"
#include "protocol/hand_over.h"
#include "protocol/map_receiver_owned.h"
#include "protocol/poller.h"
#include "protocol/release.h"

namespace rdma_transport {
namespace {

// TensorFlow aborts the process if a tensor is not aligned like this.
constexpr uint64_t kTensorAlignment = 64;

// Memory for received bytes, which no fabric needs to reach. Aligned here: glibc's aligned_alloc()
// does not use the caches of threads, and takes several times as long for small tensors.
char* AllocateAnywhere(uint64_t bytes, OwnerRef* owner) {
  void* const memory = std::malloc(bytes + kTensorAlignment);
  if (memory == nullptr) return nullptr;
  *owner = OwnerRef(memory, &std::free);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return static_cast<char*>(memory) + (kTensorAlignment - address % kTensorAlignment);
}

}  // namespace

Status DynamicReceiver::OnTensor(TensorMessage* message, Arrival* arrival) {
  const TensorHeader& header = message->header;
  Delivery& delivery = arrival->delivery;
  delivery.dtype = header.dtype;
  delivery.dead = (header.flags & kDead) != 0;
  delivery.bytes = header.bytes;
  delivery.checked = (header.flags & kChecked) != 0;
  delivery.checksum = header.checksum;
  if (header.type == MessageType::kInline) {
    RDMA_RETURN_IF_ERROR(TakeInline(*message, &delivery));
  } else if (header.type == MessageType::kDescriptor) {
    TakeDescriptor(header, arrival);
  } else {
    arrival->pull = true;
    arrival->reason = "the sender cannot send it by the fabric";
  }
  delivery.dims = std::move(message->dims);
  return OkStatus();
}

Status DynamicReceiver::TakeInline(const TensorMessage& message, Delivery* delivery) {
  delivery->mode = Mode::kInline;
  delivery->exclusive = true;
  if (delivery->bytes == 0) return OkStatus();
  char* copy = AllocateAnywhere(delivery->bytes, &delivery->owner);
  if (copy == nullptr) return Status(Code::kResourceExhausted, "no memory for a small tensor");
  std::memcpy(copy, message.payload, delivery->bytes);
  delivery->data = copy;
  GlobalCounters().inline_copied_bytes.fetch_add(delivery->bytes, std::memory_order_relaxed);
  return OkStatus();
}

void DynamicReceiver::TakeDescriptor(const TensorHeader& header, Arrival* arrival) {
  Delivery& delivery = arrival->delivery;
  delivery.mode = Mode::kDynamic;
  const fabric::RemoteSpan span = {header.source.region_key, header.source.region_offset,
                                   header.bytes};
  const bool receiver_owned = (header.flags & kReceiverOwned) != 0;
  const bool blocks_until_release = (header.flags & kBlocksUntilRelease) != 0;
  const fabric::Urgency urgency =
      blocks_until_release ? fabric::Urgency::kWake : fabric::Urgency::kLazy;
  // A sender that waits does so for a part of a tensor, of which the receiver makes no tensor.
  const bool aligned = blocks_until_release || span.offset % kTensorAlignment == 0;
  if (!receiver_owned && (!context_.settings->zero_copy || !channel_->MapsPeer() || !aligned)) {
    arrival->channel = channel_;
    arrival->source = span;
    // The region must be mapped before the read, and only this thread may do it.
    channel_->Map(span);
    delivery.owner = ReleaseBufferOnDrop(notifier_, header.source.buffer_id, urgency, nullptr);
    return;
  }
  fabric::MappedSpan mapped =
      receiver_owned ? MapReceiverOwned(context_.device, *channel_, span) : channel_->Map(span);
  delivery.data = mapped.data;
  delivery.owner =
      ReleaseBufferOnDrop(notifier_, header.source.buffer_id, urgency, std::move(mapped.holder));
  if (mapped.data == nullptr ||
      (!blocks_until_release && reinterpret_cast<uintptr_t>(mapped.data) % kTensorAlignment != 0)) {
    delivery.status = Status(Code::kResourceExhausted,
                             "a tensor of peer " + context_.traffic->tasks.remote +
                                 " cannot be mapped here (limits on memory or open files?)");
    delivery.data = nullptr;
    delivery.owner.Reset();
  }
}

bool DynamicReceiver::CanReadInto(const char* destination, uint64_t bytes) const {
  fabric::RemoteSpan rest;
  return channel_->Copies() || (channel_->Locate(destination, &rest) && rest.length >= bytes);
}

void DynamicReceiver::ReadThenDeliver(Arrival arrival, std::shared_ptr<PendingRecv> recv,
                                      std::shared_ptr<const void> link) {
  // What the receive owns must not be written to once it has ended.
  if (channel_->OutlivedByTransfers()) {
    return ReadInto(nullptr, std::move(arrival), std::move(recv), std::move(link));
  }
  const auto shared = std::make_shared<Arrival>(std::move(arrival));
  PendingRecv* const receive = recv.get();
  receive->PrepareDestination(
      shared->delivery, channel_->Copies(),
      [this, shared, recv = std::move(recv), link = std::move(link)](char* wanted) {
        ReadInto(wanted, std::move(*shared), recv, link);
      });
}

// Reads into `wanted` if possible, and otherwise, or if it is null, into other memory.
void DynamicReceiver::ReadInto(char* wanted, Arrival arrival, std::shared_ptr<PendingRecv> recv,
                               std::shared_ptr<const void> link) {
  const uint64_t bytes = arrival.delivery.bytes;
  OwnerRef memory;
  char* destination = wanted;
  if (wanted == nullptr || !CanReadInto(wanted, bytes)) {
    destination = channel_->Copies() ? AllocateAnywhere(bytes, &memory)
                                     : memory::AllocateBlockIfThere(context_.arena, bytes, &memory);
  }
  if (destination != nullptr || channel_->Copies()) {
    return Read(destination, std::move(memory), std::move(arrival), std::move(recv));
  }
  // A slab takes a second for each GiB, and other peers must be polled meanwhile.
  const auto shared = std::make_shared<Arrival>(std::move(arrival));
  std::function<void()> grow = [this, shared, recv = std::move(recv), link = std::move(link)] {
    Poller::LongWorkAhead();
    OwnerRef memory;
    char* destination = memory::AllocateBlock(context_.arena, shared->delivery.bytes, &memory);
    Read(destination, std::move(memory), std::move(*shared), recv);
  };
  if (!Poller::Defer(&grow)) grow();
}

// `destination` is null if there is no memory.
void DynamicReceiver::Read(char* destination, OwnerRef memory, Arrival arrival,
                           std::shared_ptr<PendingRecv> recv) {
  Delivery delivery = std::move(arrival.delivery);
  if (destination == nullptr) {
    delivery.status =
        Status(Code::kResourceExhausted,
               "no memory in the arena for a received tensor of " + std::to_string(delivery.bytes) +
                   " bytes (RDMA_TRANSPORT_ARENA_SIZE, limits on locked memory?)");
    recv->OnDelivery(std::move(delivery));
    return;
  }
  uint64_t cookie = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    cookie = next_cookie_++;
    Reading& reading = readings_[cookie];
    reading.begin = Now();
    reading.source = std::move(delivery.owner);
    delivery.owner = std::move(memory);
    delivery.data = destination;
    delivery.exclusive = true;
    reading.delivery = std::move(delivery);
    reading.recv = std::move(recv);
  }
  const Status started = channel_->Read(arrival.source, destination, cookie);
  if (!started.ok()) OnRead(cookie, started);
}

void DynamicReceiver::OnRead(uint64_t cookie, const Status& status) {
  Reading reading;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = readings_.find(cookie);
    if (found == readings_.end()) return;
    reading = std::move(found->second);
    readings_.erase(found);
  }
  if (reading.recv == nullptr) return;
  reading.delivery.status = status;
  if (status.ok()) context_.traffic->read_time.Add(Now() - reading.begin);
  if (status.ok() && channel_->Copies()) {
    GlobalCounters().copied_bytes.fetch_add(reading.delivery.bytes, std::memory_order_relaxed);
  }
  HandOver(context_.traffic, std::move(reading.delivery), reading.recv.get());
}

// Others read into memory of the receive itself, which must not end before the read.
bool DynamicReceiver::WaitsForPeer() const {
  if (!channel_->OutlivedByTransfers()) return false;
  std::lock_guard<std::mutex> lock(mu_);
  return std::any_of(readings_.begin(), readings_.end(),
                     [](const auto& entry) { return entry.second.recv != nullptr; });
}

void DynamicReceiver::GiveUp(const Status& silent) {
  if (!channel_->OutlivedByTransfers()) return;
  std::vector<std::shared_ptr<PendingRecv>> recvs;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (auto& [cookie, reading] : readings_) {
      if (reading.recv != nullptr) recvs.push_back(std::move(reading.recv));
    }
  }
  for (const auto& recv : recvs) {
    Delivery failed;
    failed.status = silent;
    recv->OnDelivery(std::move(failed));
  }
}

void DynamicReceiver::Abandon(const Status& lost) {
  std::map<uint64_t, Reading> readings;
  {
    std::lock_guard<std::mutex> lock(mu_);
    readings.swap(readings_);
  }
  for (auto& [cookie, reading] : readings) {
    reading.delivery.status = lost;
    channel_->Keep(std::move(reading.delivery.owner));
    if (reading.recv != nullptr) reading.recv->OnDelivery(std::move(reading.delivery));
  }
}

}  // namespace rdma_transport
