#include "collectives/shared_arena.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "base/settings.h"
#include "fabric/host/memory_file.h"

namespace rdma_transport::collectives {
namespace {

// How long a slab of a large array stays empty before it is returned to the system.
constexpr Nanos kTrimInterval = 5 * kSecond;

uint64_t ArenaLimit() {
  Settings settings;
  std::vector<std::string> warnings;
  const Status loaded = LoadSettings(environ, &settings, &warnings);
  return loaded.ok() && settings.arena_size != 0 ? settings.arena_size
                                                 : fabric::host::TotalMemory() / 4 * 3;
}

bool AnyRemote(const Mesh& mesh) {
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (mesh.Remote(peer)) return true;
  }
  return false;
}

}  // namespace

SharedArena& SharedArena::Get() {
  static auto* arena = new SharedArena;
  return *arena;
}

Status SharedArena::Attach(Mesh* mesh) {
  if (mesh->size() == 1) return OkStatus();
  Attached& attached = attached_.Get();
  std::lock_guard<std::mutex> lock(attached.mu);
  attached.meshes.insert(mesh);
  for (Place* place = first_.load(); place != nullptr; place = place->next) {
    if (place->device != mesh->device()) continue;
    for (const auto& [key, length] : place->slabs) {
      RDMA_RETURN_IF_ERROR(mesh->Share(key, length, place->writable));
    }
    return OkStatus();
  }
  attached.wanted = mesh->device();
  wants_.store(true);
  return OkStatus();
}

void SharedArena::Detach(Mesh* mesh) {
  Attached& attached = attached_.Get();
  std::lock_guard<std::mutex> lock(attached.mu);
  attached.meshes.erase(mesh);
}

// The arena is made without the lock, which its own locks come before.
void SharedArena::AddPlace() {
  auto place = std::make_unique<Place>();
  Attached& attached = attached_.Get();
  {
    std::lock_guard<std::mutex> lock(attached.mu);
    place->device = attached.wanted.lock();
    for (Mesh* const mesh : attached.meshes) {
      place->writable |= mesh->device() == place->device && AnyRemote(*mesh);
    }
  }
  if (place->device != nullptr) {
    place->arena = std::make_unique<memory::Arena>(
        place->device.get(), std::make_shared<memory::Budget>(ArenaLimit()),
        place->writable ? fabric::Access::kRemoteReadWrite : fabric::Access::kRemoteRead);
    place->arena->SetPrepare(
        [this, at = place.get()](fabric::Region* slab) { return Share(at, *slab); });
    place->arena->SetReleased(
        [this, at = place.get()](const fabric::Region& slab) { Withdraw(at, slab); });
  }
  std::lock_guard<std::mutex> lock(attached.mu);
  // Another thread may have added the place meanwhile, or a mesh of another device come.
  if (!wants_.load() || attached.wanted.lock() != place->device) return;
  wants_.store(false);
  if (place->device == nullptr) return;
  place->next = first_.load();
  first_.store(place.release());
}

Status SharedArena::Share(Place* place, const fabric::Region& slab) {
  Attached& attached = attached_.Get();
  std::lock_guard<std::mutex> lock(attached.mu);
  place->slabs[slab.key()] = slab.length();
  for (Mesh* const mesh : attached.meshes) {
    if (mesh->device() != place->device) continue;
    mesh->Share(slab.key(), slab.length(), place->writable).IgnoreError();  // a member was lost
  }
  return OkStatus();
}

void SharedArena::Withdraw(Place* place, const fabric::Region& slab) {
  Attached& attached = attached_.Get();
  std::lock_guard<std::mutex> lock(attached.mu);
  place->slabs.erase(slab.key());
  for (Mesh* const mesh : attached.meshes) {
    if (mesh->device() == place->device) mesh->Withdraw(slab.key());
  }
}

char* SharedArena::Allocate(size_t length) {
  if (wants_.load(std::memory_order_relaxed)) AddPlace();
  Place* const place = first_.load(std::memory_order_acquire);
  return place == nullptr ? nullptr : place->arena->Allocate(length);
}

bool SharedArena::Free(char* address) {
  for (Place* place = first_.load(std::memory_order_acquire); place != nullptr;
       place = place->next) {
    if (!place->arena->Contains(address)) continue;
    place->arena->Free(address);
    if (place->device->Usable()) Trim(place);  // not in a forked child
    return true;
  }
  return false;
}

void SharedArena::Trim(Place* place) {
  const Nanos now = Now();
  Nanos last = trimmed_.load();
  if (now - last < kTrimInterval || !trimmed_.compare_exchange_strong(last, now)) return;
  place->arena->ReleaseUnused();
}

}  // namespace rdma_transport::collectives
