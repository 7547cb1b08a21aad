// Memory of this process that the members of its groups on this host read where it lies, and in
// which those on other hosts write results, so that large arrays in it are not copied for them.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/mesh.h"
#include "collectives/per_process.h"
#include "fabric/fabric.h"
#include "memory/arena.h"

namespace rdma_transport::collectives {

// Thread-safe. There is one in a process, which is never destroyed.
class SharedArena {
 public:
  static SharedArena& Get();

  // The members of a ready mesh get access to all that is and will be allocated. Returns the errors
  // of Mesh::Share().
  Status Attach(Mesh* mesh);
  void Detach(Mesh* mesh);  // before it closes

  // Returns memory aligned to 64 bytes, or null: use other memory. So it is before a mesh with
  // another member was attached, in a forked child, and if there is too little memory.
  char* Allocate(size_t length);
  // Returns false for other memory. Cheap.
  bool Free(char* address);

 private:
  // The arena of a device. It stays: arrays may outlive the groups.
  struct Place {
    std::shared_ptr<fabric::Device> device;
    std::unique_ptr<memory::Arena> arena;
    bool writable = false;               // by members on other hosts
    std::map<uint64_t, uint64_t> slabs;  // their lengths by key; guarded by Attached::mu
    Place* next = nullptr;
  };

  SharedArena() = default;
  void AddPlace();
  Status Share(Place* place, const fabric::Region& slab);
  void Withdraw(Place* place, const fabric::Region& slab);
  void Trim(Place* place);

  struct Attached {
    std::mutex mu;  // guards the others
    std::set<Mesh*> meshes;
    std::weak_ptr<fabric::Device> wanted;  // needs a place if anything is allocated
  };

  PerProcess<Attached> attached_;
  std::atomic<bool> wants_{false};      // whether there is such a device
  std::atomic<Place*> first_{nullptr};  // the newest; allocations come from it
  std::atomic<Nanos> trimmed_{0};
};

}  // namespace rdma_transport::collectives
