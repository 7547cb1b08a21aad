#include "fabric/verbs/library.h"

#include <dlfcn.h>

#include <cstring>

#include "base/log.h"
#include "fabric/host/dynamic_library.h"

namespace rdma_transport::fabric::verbs {
namespace {

// Returns the name of the first required function that is missing, or null.
const char* Resolve(void* handle, Library* library) {
#define RDMA_REQUIRE(name) \
  if (!host::FindFunction(handle, "ibv_" #name, &library->name)) return "ibv_" #name;
  RDMA_VERBS(RDMA_REQUIRE)
  RDMA_REQUIRE(query_port)
  RDMA_REQUIRE(reg_mr)
#undef RDMA_REQUIRE
  host::FindFunction(handle, "_ibv_query_gid_ex", &library->query_gid_ex);
  host::FindFunction(handle, "ibv_reg_mr_iova2", &library->reg_mr_iova2);
  host::FindFunction(handle, "ibv_reg_dmabuf_mr", &library->reg_dmabuf_mr);
  host::FindFunction(handle, "ibv_is_fork_initialized", &library->is_fork_initialized);
  return nullptr;
}

Status Load(const std::string& path, std::shared_ptr<const Library>* library) {
  std::string reason;
  void* handle = host::OpenLibrary(path, &reason);
  if (handle == nullptr) {
    return Status(Code::kNotFound,
                  std::string("cannot load the verbs library: ") + reason +
                      "; install rdma-core's libibverbs (Debian: apt-get install libibverbs1 "
                      "ibverbs-providers; RHEL: dnf install libibverbs), or name it by "
                      "RDMA_TRANSPORT_LIBIBVERBS");
  }
  auto loaded = std::make_shared<Library>();
  loaded->path = path;
  if (const char* missing = Resolve(handle, loaded.get())) {
    dlclose(handle);
    return Status(Code::kUnimplemented, "'" + path + "' is too old: it lacks " + missing +
                                            "; rdma-core 17 or newer has it");
  }
  // Protects the provider's queues, which copy-on-write would move on old kernels. Regions are
  // shared memory and not affected.
  if (const int error = loaded->fork_init(); error != 0) {
    Log(LogLevel::kDebug, std::string("ibv_fork_init: ") + std::strerror(error));
  }
  *library = std::move(loaded);
  return OkStatus();
}

}  // namespace

Status LoadLibrary(const std::string& path, std::shared_ptr<const Library>* library) {
  return host::LoadOnce(path, &Load, library);
}

}  // namespace rdma_transport::fabric::verbs
