#include "bindings/polling_thread.h"

#include <unistd.h>  // environ

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "base/quiet_thread.h"
#include "base/spin.h"
#include "fabric/registry.h"

namespace rdma_transport::bindings {
namespace {

// The most bytes that may wait for Receive() before the channel is closed.
constexpr size_t kInboxLimit = size_t{256} << 20;
constexpr Nanos kCloseTimeout = 2 * kSecond;
// How long a refused operation waits for the channel to report its end.
constexpr Nanos kEndingTimeout = 100 * kMillisecond;
constexpr Nanos kRetryInterval = kMillisecond;

std::chrono::steady_clock::time_point At(Nanos time) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time));
}

Status NotYet() { return Status(Code::kDeadlineExceeded, "the timeout expired"); }

Status Gone() { return Status(Code::kNotFound, "the peer has released the region"); }

Status CheckFabric(const std::string& name) {
  std::string names = kAutoFabric;
  for (const fabric::Registration& fabric : fabric::Fabrics()) {
    if (name == fabric.name) return OkStatus();
    names += std::string("|") + fabric.name;
  }
  if (name == kAutoFabric) return OkStatus();
  return Status(Code::kInvalidArgument, "'" + name + "' is not one of " + names);
}

}  // namespace

Status OpenFabric(const std::string& name, Settings* settings,
                  std::unique_ptr<fabric::Device>* device) {
  std::vector<std::string> warnings;
  RDMA_RETURN_IF_ERROR(LoadSettings(environ, settings, &warnings));
  SetLogLevel(settings->log_level);
  for (const std::string& warning : warnings) Log(LogLevel::kWarning, warning);
  if (!name.empty()) {
    RDMA_RETURN_IF_ERROR(CheckFabric(name));
    settings->fabric = name;
  }
  return fabric::OpenDevice(*settings, device);
}

Nanos StartTimeout() {
  Settings settings;
  std::vector<std::string> warnings;
  LoadSettings(environ, &settings, &warnings).IgnoreError();
  return settings.start_timeout;
}

Status Owned::CheckOurs() const {
  if (Ours()) return OkStatus();
  return Status(Code::kFailedPrecondition,
                "the device belongs to the process that forked this one; open one here");
}

// --- BlockingChannel ---

Status BlockingChannel::Open(const std::shared_ptr<BlockingChannel>& self) {
  std::shared_ptr<fabric::Channel> channel;
  RDMA_RETURN_IF_ERROR(device_->Open(self, &channel));
  std::lock_guard<std::mutex> lock(mu_);  // its end may come already
  channel_ = std::move(channel);
  return OkStatus();
}

Status BlockingChannel::ClosedLocked() const {
  return Status(Code::kUnavailable, "the channel is closed: " + reason_);
}

Status BlockingChannel::Connected(std::shared_ptr<fabric::Channel>* channel) const {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::lock_guard<std::mutex> lock(mu_);
  if (state_ == State::kClosed) return ClosedLocked();
  if (state_ != State::kConnected) {
    return Status(Code::kFailedPrecondition, "the channel is not connected yet");
  }
  *channel = channel_;
  return OkStatus();
}

// If the channel is ending, replaces `status` by the reason for that.
Status BlockingChannel::Explained(const Status& status) {
  if (status.code() != Code::kUnavailable && status.code() != Code::kNotFound) return status;
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait_for(lock, std::chrono::nanoseconds(kEndingTimeout),
                    [this] { return state_ == State::kClosed; });
  return state_ == State::kClosed ? ClosedLocked() : status;
}

Status BlockingChannel::Address(std::string* address) const {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::shared_ptr<fabric::Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_ == State::kClosed) return ClosedLocked();
    channel = channel_;
  }
  *address = channel->Address();
  return OkStatus();
}

Status BlockingChannel::Connect(const std::string& peer_address, bool active,
                                const std::string& key) {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::shared_ptr<fabric::Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_ == State::kClosed) return ClosedLocked();
    if (state_ != State::kNew) {
      return Status(Code::kFailedPrecondition, "the channel is already connected or connecting");
    }
    state_ = State::kConnecting;
    channel = channel_;
  }
  const auto role = active ? fabric::Role::kActive : fabric::Role::kPassive;
  const Status status = channel->Connect(peer_address, role, {key, fabric::WriteEnd::kDelivered});
  if (!status.ok()) {
    OnClosed(status);
    return status;
  }
  std::lock_guard<std::mutex> lock(mu_);
  fabric_ = channel->fabric();
  route_ = channel->Route();
  return OkStatus();
}

std::string BlockingChannel::FabricName() const {
  if (!Ours()) return "";
  std::lock_guard<std::mutex> lock(mu_);
  return fabric_;
}

std::string BlockingChannel::Route() const {
  if (!Ours()) return "";
  std::lock_guard<std::mutex> lock(mu_);
  return route_;
}

Status BlockingChannel::WaitConnected(Nanos deadline) {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::unique_lock<std::mutex> lock(mu_);
  if (state_ == State::kNew) {
    return Status(Code::kFailedPrecondition, "call connect() first");
  }
  changed_.wait_until(lock, At(deadline), [this] { return state_ != State::kConnecting; });
  if (state_ == State::kClosed) return ClosedLocked();
  return state_ == State::kConnected ? OkStatus() : NotYet();
}

Status BlockingChannel::Wait(const std::shared_ptr<Transfer>& transfer, Nanos deadline) {
  if (transfer == nullptr) return OkStatus();
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait_until(lock, At(deadline), [&] { return transfer->done; });
  return transfer->done ? transfer->status : NotYet();
}

bool BlockingChannel::Done(const std::shared_ptr<Transfer>& transfer) const {
  if (transfer == nullptr) return true;
  if (!Ours()) return false;
  std::lock_guard<std::mutex> lock(mu_);
  return transfer->done;
}

Status BlockingChannel::Receive(Nanos deadline, std::string* note) {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait_until(lock, At(deadline),
                      [this] { return !inbox_.empty() || state_ == State::kClosed; });
  if (inbox_.empty()) return state_ == State::kClosed ? ClosedLocked() : NotYet();
  *note = std::move(inbox_.front());
  inbox_.pop_front();
  inbox_bytes_ -= note->size();
  return OkStatus();
}

Status BlockingChannel::Share(const std::shared_ptr<Memory>& memory) {
  std::shared_ptr<fabric::Channel> channel;
  RDMA_RETURN_IF_ERROR(Connected(&channel));
  return Explained(channel->Share(memory->key()));
}

Status BlockingChannel::WaitRemote(uint64_t key, const std::shared_ptr<Memory>& scratch,
                                   Nanos deadline) {
  while (true) {
    std::shared_ptr<Transfer> probe;
    RDMA_RETURN_IF_ERROR(Start(/*write=*/false, scratch, 0, key, 0, 1, &probe));
    const Status read = Wait(probe, deadline);
    if (read.code() != Code::kNotFound) return read;
    if (Now() + kRetryInterval > deadline) return NotYet();
    std::this_thread::sleep_for(std::chrono::nanoseconds(kRetryInterval));
  }
}

// Returns false after an error. A transfer then fails for the same reason, and reports it as all
// do.
bool BlockingChannel::CopyNow(const fabric::Channel& channel, bool write, char* local,
                              const fabric::RemoteSpan& span) {
  const auto region = channel.Remote(span.key);
  if (region == nullptr) return false;
  return write ? region->Write(local, span.offset, span.length).ok()
               : region->Read(span.offset, local, span.length).ok();
}

bool BlockingChannel::Copy(bool write, const std::shared_ptr<Memory>& memory, uint64_t at,
                           uint64_t key, uint64_t offset, uint64_t length) {
  std::shared_ptr<fabric::Channel> channel;
  if (!Connected(&channel).ok()) return false;
  return CopyNow(*channel, write, memory->data() + at, {key, offset, length});
}

Status BlockingChannel::Start(bool write, const std::shared_ptr<Memory>& memory, uint64_t at,
                              uint64_t key, uint64_t offset, uint64_t length,
                              std::shared_ptr<Transfer>* transfer) {
  std::shared_ptr<fabric::Channel> channel;
  RDMA_RETURN_IF_ERROR(Connected(&channel));
  char* const local = memory->data() + at;
  if (CopyNow(*channel, write, local, {key, offset, length})) {
    transfer->reset();
    return OkStatus();
  }
  auto made = std::make_shared<Transfer>();
  made->memory = memory;
  uint64_t cookie = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_ == State::kClosed) return ClosedLocked();
    cookie = ++last_cookie_;
    transfers_[cookie] = made;
  }
  const fabric::RemoteSpan span = {key, offset, length};
  Status status = write ? channel->Write(local, span, cookie) : channel->Read(span, local, cookie);
  if (status.ok()) {
    *transfer = std::move(made);
    // A failed flush closes the channel, and so ends the transfer.
    if (write) channel->Flush().IgnoreError();
    return OkStatus();
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    transfers_.erase(cookie);
  }
  // The bounds were checked, so either the region is gone or the channel has closed.
  return Explained(status.code() == Code::kInvalidArgument ? Gone() : status);
}

Status BlockingChannel::Notify(std::string_view note) {
  std::shared_ptr<fabric::Channel> channel;
  RDMA_RETURN_IF_ERROR(Connected(&channel));
  const iovec part = {const_cast<char*>(note.data()), note.size()};
  return Explained(channel->Notify(&part, 1, fabric::Urgency::kWake));
}

void BlockingChannel::Close(const std::string& reason) {
  if (!Ours()) return;
  std::shared_ptr<fabric::Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_ == State::kClosed) return;
    channel = channel_;
  }
  channel->Close(Status(Code::kCancelled, reason));
}

bool BlockingChannel::closed() const {
  std::lock_guard<std::mutex> lock(mu_);
  return state_ == State::kClosed;
}

void BlockingChannel::Drop() {
  std::shared_ptr<fabric::Channel> channel;
  OnClosed(Status(Code::kCancelled, "the device was closed"));
  {
    std::lock_guard<std::mutex> lock(mu_);
    channel = std::move(channel_);
  }
}

void BlockingChannel::OnConnected() {
  std::lock_guard<std::mutex> lock(mu_);
  if (state_ == State::kConnecting) state_ = State::kConnected;
  changed_.notify_all();
}

void BlockingChannel::OnNotify(const char* data, size_t length) {
  std::shared_ptr<fabric::Channel> flooded;
  {
    std::lock_guard<std::mutex> lock(mu_);
    inbox_.emplace_back(data, length);
    inbox_bytes_ += length;
    if (inbox_bytes_ > kInboxLimit) flooded = channel_;
    changed_.notify_all();
  }
  if (flooded != nullptr) {
    flooded->Close(
        Status(Code::kResourceExhausted,
               "notifications arrived faster than they were received; 256 MiB are waiting"));
  }
}

void BlockingChannel::OnTransfer(uint64_t cookie, const Status& status) {
  std::shared_ptr<Memory> memory;  // dropped after unlocking
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = transfers_.find(cookie);
  if (found == transfers_.end()) return;
  Transfer& transfer = *found->second;
  memory = std::move(transfer.memory);
  transfer.done = true;
  transfer.status = status.code() == Code::kInvalidArgument ? Gone() : status;
  transfers_.erase(found);
  changed_.notify_all();
}

void BlockingChannel::OnClosed(const Status& status) {
  std::map<uint64_t, std::shared_ptr<Transfer>> transfers;
  std::shared_ptr<fabric::Channel> channel;
  {
    std::lock_guard<std::mutex> lock(mu_);
    channel = channel_;
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    reason_ = status.message();
    for (auto& [cookie, transfer] : transfers_) {
      transfer->done = true;
      transfer->status = ClosedLocked();
    }
    transfers.swap(transfers_);
    changed_.notify_all();
  }
  for (auto& [cookie, transfer] : transfers) {
    channel->Keep(OwnerRef::Holding(std::exchange(transfer->memory, nullptr)));
  }
}

// --- PollingThread ---

Status PollingThread::Open(const std::string& fabric, std::shared_ptr<PollingThread>* thread) {
  Settings settings;
  std::unique_ptr<fabric::Device> device;
  RDMA_RETURN_IF_ERROR(OpenFabric(fabric, &settings, &device));
  *thread = Owned::Share(new PollingThread(settings, std::move(device)));
  return OkStatus();
}

PollingThread::PollingThread(const Settings& settings, std::shared_ptr<fabric::Device> device)
    : spin_(settings.spin),
      peer_timeout_(settings.peer_timeout),
      stall_warning_(settings.stall_warning),
      stall_timeout_(settings.stall_timeout),
      summary_(device->Summary()),
      device_(std::move(device)) {
  thread_ = QuietThread("rdma_fabric", [this, polled = device_.get()] { Loop(polled); });
}

Status PollingThread::Device(std::shared_ptr<fabric::Device>* device) const {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::lock_guard<std::mutex> lock(mu_);
  if (device_ == nullptr) return Status(Code::kFailedPrecondition, "the device is closed");
  *device = device_;
  return OkStatus();
}

Status PollingThread::Allocate(size_t length, bool writable_by_peers,
                               std::shared_ptr<Memory>* memory) {
  std::shared_ptr<fabric::Device> device;
  RDMA_RETURN_IF_ERROR(Device(&device));
  const size_t granule = device->RegionGranule();
  if (length == 0 || length > SIZE_MAX - granule) {
    return Status(Code::kInvalidArgument,
                  "a region cannot have " + std::to_string(length) + " bytes");
  }
  std::unique_ptr<fabric::Region> region;
  const auto access =
      writable_by_peers ? fabric::Access::kRemoteReadWrite : fabric::Access::kRemoteRead;
  RDMA_RETURN_IF_ERROR(
      device->Allocate((length + granule - 1) / granule * granule, access, nullptr, &region));
  *memory = Owned::Share(new Memory(std::move(device), std::move(region), length));
  return OkStatus();
}

Status PollingThread::OpenChannel(std::shared_ptr<BlockingChannel>* channel) {
  std::shared_ptr<fabric::Device> device;
  RDMA_RETURN_IF_ERROR(Device(&device));
  auto made = Owned::Share(new BlockingChannel(device));
  RDMA_RETURN_IF_ERROR(made->Open(made));
  std::lock_guard<std::mutex> lock(mu_);
  if (device_ == nullptr) return Status(Code::kFailedPrecondition, "the device is closed");
  channels_.push_back(made);
  *channel = std::move(made);
  return OkStatus();
}

Status PollingThread::Scratch(std::shared_ptr<Memory>* memory) {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  {
    std::lock_guard<std::mutex> lock(mu_);
    *memory = scratch_;
  }
  if (*memory != nullptr) return OkStatus();
  RDMA_RETURN_IF_ERROR(Allocate(1, /*writable_by_peers=*/false, memory));
  std::lock_guard<std::mutex> lock(mu_);
  scratch_ = *memory;
  return OkStatus();
}

void PollingThread::Loop(fabric::Device* device) {
  Nanos last_work = Now();
  while (!stop_.load()) {
    std::unique_lock<std::mutex> polling(poll_mu_);
    const int handled = device->Poll();
    const bool reaped = Reap();
    const Nanos now = Now();
    if (handled > 0 || reaped) {
      last_work = now;
    } else if (now - last_work < spin_ && !helped_.load()) {
      polling.unlock();
      SpinBriefly();
    } else if (device->ArmNotification()) {
      polling.unlock();
      device->Sleep(Now() + kSecond);
    }
  }
}

std::function<void(const std::function<bool()>& done)> PollingThread::Helper(
    const std::shared_ptr<PollingThread>& thread) {
  return [weak = std::weak_ptr<PollingThread>(thread)](const std::function<bool()>& done) {
    const auto helped = weak.lock();
    if (helped != nullptr) helped->Help(done);
  };
}

void PollingThread::Help(const std::function<bool()>& done) {
  std::shared_ptr<fabric::Device> device;
  if (!Device(&device).ok() || helped_.exchange(true)) return;
  {
    std::lock_guard<std::mutex> polling(poll_mu_);
    for (Nanos last_work = Now(); !done() && !stop_.load();) {
      const Nanos now = Now();
      if (device->Poll() > 0) {
        last_work = now;
      } else if (now - last_work > spin_) {
        break;
      } else {
        SpinBriefly();
      }
    }
    // The polling thread sleeps, or waits for this lock.
    if (!device->ArmNotification()) device->Wake();
  }
  helped_.store(false);
}

// Drops closed channels. Returns whether there were any.
bool PollingThread::Reap() {
  std::vector<std::shared_ptr<BlockingChannel>> closed;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto open = std::partition(channels_.begin(), channels_.end(),
                                     [](const auto& channel) { return !channel->closed(); });
    closed.assign(open, channels_.end());
    channels_.erase(open, channels_.end());
  }
  if (closed.empty()) return false;
  for (const auto& channel : closed) channel->Drop();
  reaped_.notify_all();
  return true;
}

void PollingThread::Close() {
  if (!Ours()) return;
  std::lock_guard<std::mutex> closing(close_mu_);
  std::shared_ptr<fabric::Device> device;
  std::vector<std::shared_ptr<BlockingChannel>> channels;
  std::shared_ptr<Memory> scratch;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (device_ == nullptr) return;
    device = std::move(device_);
    device_ = nullptr;
    channels = channels_;
    scratch = std::move(scratch_);
  }
  for (const auto& channel : channels) channel->Close("the device was closed");
  {
    std::unique_lock<std::mutex> lock(mu_);
    reaped_.wait_until(lock, At(Now() + kCloseTimeout), [this] { return channels_.empty(); });
  }
  stop_.store(true);
  device->Wake();
  thread_.join();
  for (const auto& channel : channels) channel->Drop();
  std::lock_guard<std::mutex> lock(mu_);
  channels_.clear();
}

}  // namespace rdma_transport::bindings
