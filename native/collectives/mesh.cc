#include "collectives/mesh.h"

#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "collectives/mesh_peer.h"
#include "collectives/per_process.h"

namespace rdma_transport::collectives {
namespace {

constexpr int kMaxMembers = 1024;
constexpr Nanos kReleaseTimeout = kSecond;

// Keeps an end whose peer has not said that its writes have ended: where they go must stay, and so
// must the device.
void KeepForGood(const std::shared_ptr<MeshPeer>& peer) {
  struct Kept {
    std::mutex mu;
    std::vector<std::shared_ptr<MeshPeer>> ends;
  };
  static PerProcess<Kept> all;
  Kept& kept = all.Get();
  std::lock_guard<std::mutex> lock(kept.mu);
  kept.ends.push_back(peer);
}

}  // namespace

Mesh::Mesh(std::shared_ptr<fabric::Device> device, int rank, int size)
    : device_(std::move(device)),
      rank_(rank),
      size_(size),
      state_(std::make_shared<MeshState>()),
      peers_(static_cast<size_t>(size)) {}

Status Mesh::Open(std::shared_ptr<fabric::Device> device, int rank, int size, Nanos peer_timeout,
                  std::unique_ptr<Mesh>* mesh) {
  if (size < 1 || size > kMaxMembers || rank < 0 || rank >= size) {
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank) + " of " +
                                              std::to_string(size) + ": a group has 1 to " +
                                              std::to_string(kMaxMembers) + " ranks from 0 on");
  }
  std::unique_ptr<Mesh> made(new Mesh(std::move(device), rank, size));
  fabric::Device* const opened = made->device_.get();
  const size_t granule = opened->RegionGranule();
  const size_t length = (kRegionBytes + granule - 1) / granule * granule;
  std::unique_ptr<fabric::Region> region;
  RDMA_RETURN_IF_ERROR(opened->Allocate(length, fabric::Access::kRemoteRead, nullptr, &region));
  new (region->address()) Board();
  MeshState& state = *made->state_;
  state.rank = rank;
  state.peer_timeout = peer_timeout;
  state.pool = std::make_shared<BlockPool>(made->device_);
  state.ends.resize(size);
  state.absent.resize(size);
  state.own = std::make_shared<OwnRegion>(OwnRegion{made->device_, std::move(region)});
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    auto end = std::make_shared<MeshPeer>(peer, made->state_);
    std::shared_ptr<fabric::Channel> channel;
    RDMA_RETURN_IF_ERROR(opened->Open(end, &channel));
    end->SetChannel(std::move(channel));
    state.ends[peer] = end;
    made->peers_[peer] = std::move(end);
  }
  *mesh = std::move(made);
  return OkStatus();
}

Mesh::~Mesh() {
  WhenLost(nullptr);
  Close("the communicator was closed");
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    peer->KeepSource();
    peer->Lose(Status(Code::kCancelled, "the communicator was closed"));
  }
  {
    std::unique_lock<std::mutex> lock(state_->mu);
    for (const auto& receive : state_->inbox.receives) {  // of a group of one
      state_->End(receive.get(), Status(Code::kCancelled, "the communicator was closed"));
    }
    state_->inbox.receives.clear();
    state_->changed.wait(lock, [this] { return state_->copying == 0; });
  }
  // A provider may still copy a write that is arriving into a replica.
  const Nanos deadline = Now() + kReleaseTimeout;
  for (const auto& peer : peers_) {
    while (peer != nullptr && peer->MayWrite() && Now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (peer != nullptr && peer->MayWrite()) KeepForGood(peer);
  }
}

void Mesh::PollWhileWaiting(Progress::Helper helper) { state_->helper = std::move(helper); }

const Progress::Helper& Mesh::helper() const { return state_->helper; }

std::string Mesh::Address(int peer) const {
  return peers_[peer] == nullptr ? "" : peers_[peer]->channel()->Address();
}

Status Mesh::Connect(int peer, const std::string& address, const std::string& key) {
  if (peer < 0 || peer >= size_ || peers_[peer] == nullptr) {
    return Status(Code::kInvalidArgument, "there is no other rank " + std::to_string(peer));
  }
  const auto role = rank_ < peer ? fabric::Role::kActive : fabric::Role::kPassive;
  // Who waits for the end of a write polls.
  return peers_[peer]->channel()->Connect(address, role, {key, fabric::WriteEnd::kLate});
}

void Mesh::NameRanks(std::vector<int> names) {
  std::lock_guard<std::mutex> lock(state_->mu);
  state_->names = std::move(names);
}

Status Mesh::WaitReady(const Patience& patience) {
  std::unique_lock<std::mutex> lock(state_->mu);
  for (const auto& peer : peers_) {
    if (peer == nullptr) continue;
    const auto done = [&] { return peer->ready() || !peer->lost().ok(); };
    RDMA_RETURN_IF_ERROR(
        state_->Wait(&lock, patience, done, [] { return false; }, "a rank did not connect"));
    if (!peer->ready()) return peer->lost();
  }
  return OkStatus();
}

const char* Mesh::memory(int peer) const {
  if (peers_[peer] == nullptr) return own();
  std::lock_guard<std::mutex> lock(state_->mu);
  return peers_[peer]->memory();
}

char* Mesh::own() const { return state_->own->region->address(); }

bool Mesh::Remote(int peer) const {
  if (peers_[peer] == nullptr) return false;
  std::lock_guard<std::mutex> lock(state_->mu);
  return peers_[peer]->remote();
}

Status Mesh::Announce(int peer, const Announcement& announcement, const Patience& patience) const {
  return peers_[peer]->Announce(announcement, patience);
}

Status Mesh::WaitWritten(size_t part, const Patience& patience) const {
  for (const auto& peer : peers_) {
    if (peer != nullptr) RDMA_RETURN_IF_ERROR(peer->WaitWritten(part, patience));
  }
  return OkStatus();
}

Status Mesh::CheckLost(int peer) const {
  if (peers_[peer] == nullptr) return OkStatus();
  peers_[peer]->CheckAlive();
  return Lost(peer);
}

Status Mesh::Lost(int peer) const {
  if (peers_[peer] == nullptr) return OkStatus();
  std::lock_guard<std::mutex> lock(state_->mu);
  return peers_[peer]->lost();
}

void Mesh::WhenLost(std::function<void()> hook) {
  std::lock_guard<std::mutex> lock(state_->hook_mu);
  state_->lost_hook = std::move(hook);
}

Status Mesh::Share(uint64_t key, uint64_t length, bool writable) {
  Note note;
  note.kind = Note::kShare;
  note.key = key;
  note.length = length;
  bool placed = writable;
  for (int peer = 0; peer < size_ && placed; ++peer) {
    // If a card has no room for it, its arrays are staged.
    if (Remote(peer)) placed = peers_[peer]->channel()->Share(key).ok();
  }
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->shared[key] = {length, placed};
  }
  Status first = OkStatus();
  for (int peer = 0; peer < size_; ++peer) {
    if (peers_[peer] == nullptr || Remote(peer)) continue;
    Status status = peers_[peer]->channel()->Share(key);
    if (status.ok()) status = peers_[peer]->SendNote(note);
    if (first.ok()) first = status;
  }
  return first;
}

void Mesh::Withdraw(uint64_t key) {
  Note note;
  note.kind = Note::kWithdraw;
  note.key = key;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->shared.erase(key);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peers_[peer] == nullptr || Remote(peer)) continue;
    peers_[peer]->SendNote(note).IgnoreError();  // a lost member has dropped it
  }
}

bool Mesh::FindShared(const void* data, size_t length, fabric::RemoteSpan* span,
                      bool placed) const {
  std::lock_guard<std::mutex> lock(state_->mu);
  if (state_->shared.empty() || !device_->Locate(data, span)) return false;
  const auto found = state_->shared.find(span->key);
  return found != state_->shared.end() && length <= span->length &&
         (!placed || found->second.placed);
}

void Mesh::KeepArrays(std::shared_ptr<const void> arrays) {
  std::shared_ptr<const void> before;  // dropped after the lock
  std::lock_guard<std::mutex> lock(state_->mu);
  before = std::exchange(state_->arrays, std::move(arrays));
}

Status Mesh::Map(int peer, const fabric::RemoteSpan& span, const Patience& patience,
                 fabric::MappedSpan* mapped) const {
  const MeshPeer& end = *peers_[peer];
  uint64_t length = 0;
  std::unique_lock<std::mutex> lock(state_->mu);
  const auto done = [&] { return end.FindShared(span.key, &length) || !end.lost().ok(); };
  RDMA_RETURN_IF_ERROR(
      state_->Wait(&lock, patience, done, [] { return false; }, "a rank did not share its array"));
  const fabric::MappedSpan* const found = end.FindShared(span.key, &length);
  if (found == nullptr) return end.lost();
  if (found->data == nullptr) {
    return Status(Code::kResourceExhausted,
                  "cannot map an array of rank " + std::to_string(peer) + ": out of mappings");
  }
  if (span.offset > length || span.length > length - span.offset) {
    return Status(Code::kDataLoss,
                  "rank " + std::to_string(peer) + " named memory outside of its array");
  }
  *mapped = {found->data + span.offset, found->holder};
  return OkStatus();
}

Status Mesh::ShareWithRemote(uint64_t key) {
  Status first = OkStatus();
  for (int peer = 0; peer < size_; ++peer) {
    if (!Remote(peer)) continue;
    const Status status = peers_[peer]->channel()->Share(key);
    if (first.ok()) first = status;
  }
  return first;
}

Status Mesh::Read(int peer, const fabric::RemoteSpan& source, char* destination,
                  const std::shared_ptr<RemoteReads>& reads) const {
  return peers_[peer]->Read(source, destination, reads);
}

Status Mesh::WaitRead(const RemoteReads& reads, const Patience& patience) const {
  std::unique_lock<std::mutex> lock(state_->mu);
  const auto done = [&] { return reads.under_way == 0; };
  const auto check = [this] { state_->CheckAlive(kAny); };
  RDMA_RETURN_IF_ERROR(
      state_->WaitPolling(&lock, patience, done, check, "memory of a rank was not read"));
  return reads.status;
}

Status Mesh::Drain(bool (*interrupted)()) const {
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->Leave();
  }
  uint64_t taken = 0;
  Nanos moved = Now();
  for (Nanos looked = moved;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    int behind = kAny;
    const uint64_t before = std::exchange(taken, 0);
    for (int peer = 0; peer < size_; ++peer) {
      if (peers_[peer] != nullptr && !peers_[peer]->Drained(&taken) && Lost(peer).ok())
        behind = peer;
    }
    if (behind == kAny) return OkStatus();
    const Nanos now = Now();
    if (taken != before) moved = now;
    if (now - moved >= state_->peer_timeout) {
      return Status(Code::kDeadlineExceeded,
                    "rank " + std::to_string(behind) + " does not take its messages");
    }
    if (now - looked < kCheckInterval) continue;
    looked = now;
    state_->CheckAlive(kAny);
    if (interrupted != nullptr && interrupted()) return Status(Code::kCancelled, "interrupted");
  }
}

void Mesh::Close(const std::string& reason) {
  for (const auto& peer : peers_) {
    if (peer != nullptr) peer->channel()->Close(Status(Code::kCancelled, reason));
  }
}

}  // namespace rdma_transport::collectives
