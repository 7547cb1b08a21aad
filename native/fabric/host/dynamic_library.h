// The host's libraries, opened at run time and never closed, because they have global state.
#pragma once

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"

namespace rdma_transport::fabric::host {

// Opens the library that dlopen() finds by this name or path. Returns null, and the reason, if
// there is none. Thread-safe.
void* OpenLibrary(const std::string& path, std::string* reason);

// Sets `function`, a function pointer, to the library's function of that name. Returns false if
// there is none.
template <typename Function>
bool FindFunction(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  return *function != nullptr;
}

// Returns the file that a function is from, or `otherwise` if it is not known.
std::string FileOf(const void* function, const std::string& otherwise);

// Calls `load` for each path until it succeeds, and returns the same library from then on.
// Thread-safe. `Library` must be the caller's own.
template <typename Library>
Status LoadOnce(const std::string& path,
                Status (*load)(const std::string&, std::shared_ptr<const Library>*),
                std::shared_ptr<const Library>* library) {
  static auto* mu = new std::mutex;
  static auto* loaded = new std::map<std::string, std::shared_ptr<const Library>>;
  std::lock_guard<std::mutex> lock(*mu);
  const auto found = loaded->find(path);
  if (found != loaded->end()) {
    *library = found->second;
    return OkStatus();
  }
  RDMA_RETURN_IF_ERROR(load(path, library));
  loaded->emplace(path, *library);
  return OkStatus();
}

}  // namespace rdma_transport::fabric::host
