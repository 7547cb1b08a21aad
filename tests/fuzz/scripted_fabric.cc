#include "scripted_fabric.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/parts.h"

namespace rdma_transport::fuzz {
namespace {

class ScriptedRegion final : public fabric::Region {
 public:
  ScriptedRegion(uint64_t key, char* address, size_t length, fabric::Access access) {
    address_ = address;
    length_ = length;
    key_ = key;
    access_ = access;
  }
  ~ScriptedRegion() override {
    RunHooks();
    mmap(address_, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
  }
};

bool Inside(const fabric::RemoteSpan& span, uint64_t length) {
  return span.offset <= length && span.length <= length - span.offset;
}

}  // namespace

// --- The device ---

Status ScriptedDevice::Allocate(size_t length, fabric::Access access, void* place,
                                std::unique_ptr<fabric::Region>* region) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place == nullptr ? 0 : MAP_FIXED);
  void* address = mmap(place, length, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (address == MAP_FAILED) return Status(Code::kResourceExhausted, "no memory");
  auto made =
      std::make_unique<ScriptedRegion>(++last_key_, static_cast<char*>(address), length, access);
  regions_[made->key()] = made.get();
  made->BeforeEnd([this](uint64_t key) { regions_.erase(key); });
  *region = std::move(made);
  return OkStatus();
}

fabric::MappedSpan ScriptedDevice::MapOwn(const fabric::RemoteSpan& span) {
  const auto found = regions_.find(span.key);
  if (found == regions_.end() || !Inside(span, found->second->length())) return {};
  return {found->second->address() + span.offset, std::make_shared<int>(0)};
}

bool ScriptedDevice::Locate(const void* data, fabric::RemoteSpan* span) const {
  const auto* address = static_cast<const char*>(data);
  for (const auto& [key, region] : regions_) {
    if (address < region->address() || address >= region->address() + region->length()) continue;
    const auto offset = static_cast<uint64_t>(address - region->address());
    *span = {key, offset, region->length() - offset};
    return true;
  }
  return false;
}

Status ScriptedDevice::Open(std::weak_ptr<fabric::ChannelHandler> handler,
                            std::shared_ptr<fabric::Channel>* channel) {
  channel_ = std::make_shared<ScriptedChannel>(this, std::move(handler));
  if (on_open) on_open(channel_.get());
  *channel = channel_;
  return OkStatus();
}

// --- The channel ---

ScriptedChannel::PeerMemory::PeerMemory(size_t bytes)
    : data(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))), length(bytes) {
  std::memset(data, 7, bytes);
}

ScriptedChannel::PeerMemory::~PeerMemory() { std::free(data); }

Status ScriptedChannel::Connect(std::string_view, fabric::Role, const fabric::Terms&) {
  if (const auto handler = handler_.lock()) handler->OnConnected();
  return OkStatus();
}

bool ScriptedChannel::MapsPeer() const { return device_->manners().maps; }

Status ScriptedChannel::Share(uint64_t) {
  return closed_ ? Status(Code::kUnavailable, "the channel is not connected") : OkStatus();
}

bool ScriptedChannel::Locate(const void* data, fabric::RemoteSpan* span) const {
  return device_->Locate(data, span);
}

Status ScriptedChannel::Notify(const iovec* parts, int count, fabric::Urgency, uint64_t* number,
                               fabric::After) {
  if (closed_) return Status(Code::kUnavailable, "the channel is not connected");
  if (device_->manners().refuses) return Status(Code::kResourceExhausted, "no room");
  const std::string bytes = Joined(parts, count);
  ++notified_;
  if (number != nullptr) *number = notified_;
  if (on_notify) on_notify(bytes);
  return OkStatus();
}

char* ScriptedChannel::Find(const fabric::RemoteSpan& span, Memory* memory) {
  const auto found = regions_.find(span.key);
  if (found == regions_.end() || !Inside(span, found->second->length)) return nullptr;
  *memory = found->second;
  return found->second->data + span.offset;
}

fabric::MappedSpan ScriptedChannel::Map(const fabric::RemoteSpan& span) {
  if (!MapsPeer()) return {};
  Memory memory;
  const char* data = Find(span, &memory);
  return data == nullptr ? fabric::MappedSpan() : fabric::MappedSpan{data, std::move(memory)};
}

bool ScriptedChannel::Owns(const void* data, fabric::RemoteSpan* span) const {
  if (!MapsPeer()) return false;
  for (const auto& [key, memory] : regions_) {
    const auto* address = static_cast<const char*>(data);
    if (address < memory->data || address >= memory->data + memory->length) continue;
    const auto offset = static_cast<uint64_t>(address - memory->data);
    *span = {key, offset, memory->length - offset};
    return true;
  }
  return false;
}

Status ScriptedChannel::Read(const fabric::RemoteSpan& source, char* destination, uint64_t cookie) {
  if (closed_) return Status(Code::kUnavailable, "the channel is not connected");
  transfers_.push_back({source, destination, cookie});
  return OkStatus();
}

Status ScriptedChannel::Write(const char* source, const fabric::RemoteSpan& destination,
                              uint64_t cookie) {
  if (closed_) return Status(Code::kUnavailable, "the channel is not connected");
  Memory memory;
  char* data = Find(destination, &memory);
  if (data == nullptr) return Status(Code::kInvalidArgument, "outside the peer's memory");
  std::memcpy(data, source, destination.length);
  if (cookie == fabric::kNobodyWaits) return OkStatus();
  transfers_.push_back({destination, nullptr, cookie});
  return OkStatus();
}

bool ScriptedChannel::EndTransfer(const Status& wanted) {
  if (transfers_.empty()) return false;
  const Transfer transfer = transfers_.front();
  transfers_.pop_front();
  Status status = wanted;
  if (status.ok() && transfer.destination != nullptr) {
    Memory memory;
    const char* data = Find(transfer.span, &memory);
    if (data == nullptr) {
      status = Status(Code::kInvalidArgument, "outside the peer's memory");
    } else {
      std::memcpy(transfer.destination, data, transfer.span.length);
    }
  }
  if (const auto handler = handler_.lock()) handler->OnTransfer(transfer.cookie, status);
  return true;
}

void ScriptedChannel::Close(const Status&) { closed_ = true; }

void ScriptedChannel::FinishClose(const Status& status) {
  closed_ = true;
  if (std::exchange(finished_, true)) return;
  transfers_.clear();
  const auto handler = handler_.lock();
  if (handler == nullptr) return;
  handler->OnClosed(status);
  if (status.code() != Code::kUnavailable) handler->OnReleased();
}

}  // namespace rdma_transport::fuzz
