// The host's libibverbs, loaded on first use. It is neither linked nor bundled, because it must
// match the kernel's drivers.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "base/status.h"

// Undefines macros that hide functions loaded at run time.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace rdma_transport::fabric::verbs {

// The functions that every library has, without "ibv_". Others, such as ibv_poll_cq(), are called
// through the context.
// clang-format off
#define RDMA_VERBS(X) \
  X(get_device_list) X(free_device_list) X(get_device_name) X(open_device) \
  X(close_device) X(query_device) X(query_gid) X(query_pkey) X(alloc_pd) X(dealloc_pd) \
  X(dereg_mr) X(create_comp_channel) X(destroy_comp_channel) X(create_cq) \
  X(destroy_cq) X(resize_cq) X(get_cq_event) X(ack_cq_events) X(create_qp) \
  X(modify_qp) X(destroy_qp) X(get_async_event) X(ack_async_event) X(fork_init)
// clang-format on

struct Library {
#define RDMA_DECLARE(name) decltype(&ibv_##name) name;
  RDMA_VERBS(RDMA_DECLARE)
#undef RDMA_DECLARE
  int (*query_port)(ibv_context*, uint8_t, ibv_port_attr*);
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int);

  // Null in older libraries.
  int (*query_gid_ex)(ibv_context*, uint32_t port, uint32_t index, ibv_gid_entry*, uint32_t flags,
                      size_t entry_size);
  ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, size_t, uint64_t iova, unsigned int access);
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, uint64_t offset, size_t, uint64_t iova, int file, int access);
  int (*is_fork_initialized)();  // an ibv_fork_status

  std::string path;  // as passed to LoadLibrary()
};

// Loads the library, prepares it for fork(), and never unloads it, because providers have global
// state. `path` is the argument of dlopen(). Returns NotFound if the library does not exist,
// Unimplemented if it is too old. Thread-safe.
Status LoadLibrary(const std::string& path, std::shared_ptr<const Library>* library);

}  // namespace rdma_transport::fabric::verbs
