#include "fabric/libfabric/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "fabric/host/dynamic_library.h"
#include "fabric/libfabric/signals.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// Returns the name of the first function that is missing, or null.
const char* Resolve(void* handle, Library* library) {
#define RDMA_REQUIRE(name) \
  if (!host::FindFunction(handle, "fi_" #name, &library->name)) return "fi_" #name
  RDMA_REQUIRE(getinfo);
  RDMA_REQUIRE(freeinfo);
  RDMA_REQUIRE(dupinfo);
  RDMA_REQUIRE(fabric);
  RDMA_REQUIRE(version);
  RDMA_REQUIRE(strerror);
#undef RDMA_REQUIRE
  return nullptr;
}

Status Load(const std::string& path, std::shared_ptr<const Library>* library) {
  const SignalKeeper keeper;
  std::string reason;
  void* handle = host::OpenLibrary(path, &reason);
  if (handle == nullptr) {
    return Status(Code::kNotFound,
                  std::string("cannot load libfabric: ") + reason +
                      "; install it (Debian: apt-get install libfabric1; RHEL: dnf install "
                      "libfabric), or name it by RDMA_TRANSPORT_LIBFABRIC");
  }
  auto loaded = std::make_shared<Library>();
  loaded->path = path;
  const char* missing = Resolve(handle, loaded.get());
  if (missing != nullptr || FI_VERSION_LT(loaded->version(), kOldestApi)) {
    const std::string flaw =
        missing != nullptr ? std::string("lacks ") + missing : "is version " + loaded->Version();
    dlclose(handle);
    return Status(Code::kUnimplemented,
                  "'" + path + "' is too old: it " + flaw + "; libfabric 1.14 or newer is needed");
  }
  *library = std::move(loaded);
  return OkStatus();
}

}  // namespace

std::string Library::Version() const {
  const uint32_t number = version();
  return std::to_string(FI_MAJOR(number)) + "." + std::to_string(FI_MINOR(number));
}

Status Library::Error(long error, std::string_view what) const {  // NOLINT(runtime/int)
  const int number = static_cast<int>(std::labs(error));
  Code code = Code::kUnavailable;
  switch (number) {
    case FI_ENOMEM:
    case FI_ENOSPC:
    case FI_EMFILE:
    case FI_EAGAIN:
      code = Code::kResourceExhausted;
      break;
    case FI_EINVAL:
    case FI_EBADFLAGS:
    case FI_EMSGSIZE:
      code = Code::kInvalidArgument;
      break;
    case FI_ENOSYS:
    case FI_EOPNOTSUPP:
    case FI_ENODATA:
      code = Code::kUnimplemented;
      break;
    case FI_EACCES:
    case FI_EPERM:
      code = Code::kPermissionDenied;
      break;
    default:
      break;
  }
  return Status(code, std::string(what) + ": " + strerror(number));
}

Status LoadLibrary(const std::string& path, std::shared_ptr<const Library>* library) {
  return host::LoadOnce(path, &Load, library);
}

}  // namespace rdma_transport::fabric::libfabric
