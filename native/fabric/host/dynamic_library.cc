#include "fabric/host/dynamic_library.h"

namespace rdma_transport::fabric::host {

void* OpenLibrary(const std::string& path, std::string* reason) {
  // dlopen() of an empty name would return this program itself.
  void* handle = path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = path.empty() ? "no name" : dlerror();
    *reason = error == nullptr ? path : error;
  }
  return handle;
}

std::string FileOf(const void* function, const std::string& otherwise) {
  Dl_info found;
  if (dladdr(function, &found) == 0 || found.dli_fname == nullptr) return otherwise;
  return found.dli_fname;
}

}  // namespace rdma_transport::fabric::host
