#include "fabric/libfabric/library.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

#include "fabric/host/dynamic_library.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// Restores the actions of all signals that are changed during its life; one at a time lives. Some
// providers install handlers when the library is loaded or asked what there is, even if they are
// never used; those of PSM end the process at SIGINT and SIGTERM, without running the handlers of
// the program.
class SignalKeeper {
 public:
  SignalKeeper() : lock_(Mutex()) {
    for (int number = 1; number < NSIG; ++number) known_[number] = Get(number, &before_[number]);
  }
  ~SignalKeeper() {
    for (int number = 1; number < NSIG; ++number) {
      const struct sigaction& before = before_[number];
      struct sigaction now = {};
      if (!known_[number] || !Get(number, &now)) continue;
      if (now.sa_flags == before.sa_flags && now.sa_handler == before.sa_handler) continue;
      sigaction(number, &before, nullptr);
    }
  }
  SignalKeeper(const SignalKeeper&) = delete;
  SignalKeeper& operator=(const SignalKeeper&) = delete;

 private:
  static std::mutex& Mutex() {
    static auto* mu = new std::mutex;
    return *mu;
  }
  // False for those that the C library has for itself.
  static bool Get(int number, struct sigaction* action) {
    return sigaction(number, nullptr, action) == 0;
  }

  std::lock_guard<std::mutex> lock_;
  std::array<struct sigaction, NSIG> before_ = {};  // by number
  std::array<bool, NSIG> known_ = {};
};

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

InfoPtr Library::Offers(const fi_info& hints) const {
  const SignalKeeper keeper;
  fi_info* found = nullptr;
  const uint32_t api = std::min(version(), kNewestApi);
  const int error = getinfo(api, nullptr, nullptr, 0, &hints, &found);
  return InfoPtr(error == 0 ? found : nullptr, {freeinfo});
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
