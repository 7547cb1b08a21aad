// The host's libfabric, loaded on first use. It is neither linked nor bundled, because vendors
// ship their own.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::libfabric {

// The interface that this fabric needs, and the oldest library that has it.
constexpr uint32_t kOldestApi = FI_VERSION(1, 14);
// What is asked for where the library has it: for a client of an older one, EFA moves the bytes of
// writes and reads by the processors of both sides on some cards that need not.
constexpr uint32_t kNewestApi = FI_VERSION(1, 18);

// Frees a list of infos.
struct InfoDeleter {
  decltype(&::fi_freeinfo) free = nullptr;
  void operator()(fi_info* info) const { free(info); }
};
using InfoPtr = std::unique_ptr<fi_info, InfoDeleter>;

// Functions such as fi_send() are missing here because they are called through the objects.
struct Library {
  decltype(&::fi_getinfo) getinfo;
  decltype(&::fi_freeinfo) freeinfo;
  decltype(&::fi_dupinfo) dupinfo;
  decltype(&::fi_fabric) fabric;
  decltype(&::fi_version) version;
  decltype(&::fi_strerror) strerror;

  std::string path;  // as passed to LoadLibrary()

  // Returns a copy of the first of these infos; of null, an empty one. Null if there is no memory.
  InfoPtr Copy(const fi_info* info) const { return InfoPtr(dupinfo(info), {freeinfo}); }
  // Returns what the library offers; null if nothing fits.
  InfoPtr Offers(const fi_info& hints) const;
  // Returns, for example, "1.17".
  std::string Version() const;
  // Returns a status whose code matches `error`, a positive or negative FI_ number, and whose
  // message is, for example, "fi_endpoint of efa: Cannot allocate memory".
  Status Error(long error,
               std::string_view what) const;  // NOLINT(runtime/int): as libfabric has it
};

// Closes an object of the library.
struct Closer {
  template <typename Object>
  void operator()(Object* object) const {
    if (object != nullptr) fi_close(&object->fid);
  }
};
template <typename Object>
using Owned = std::unique_ptr<Object, Closer>;

// Loads the library and never unloads it, because providers have global state. `path` is the
// argument of dlopen(). Returns NotFound if the library does not exist, Unimplemented if it is too
// old. Thread-safe.
Status LoadLibrary(const std::string& path, std::shared_ptr<const Library>* library);

}  // namespace rdma_transport::fabric::libfabric
