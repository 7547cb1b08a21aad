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

// Functions such as ibv_poll_cq() and ibv_post_send() are missing here because they are called
// through the context.
struct Library {
  decltype(&ibv_get_device_list) get_device_list;
  decltype(&ibv_free_device_list) free_device_list;
  decltype(&ibv_get_device_name) get_device_name;
  decltype(&ibv_open_device) open_device;
  decltype(&ibv_close_device) close_device;
  decltype(&ibv_query_device) query_device;
  int (*query_port)(ibv_context*, uint8_t, ibv_port_attr*);
  decltype(&ibv_query_gid) query_gid;
  decltype(&ibv_query_pkey) query_pkey;
  decltype(&ibv_alloc_pd) alloc_pd;
  decltype(&ibv_dealloc_pd) dealloc_pd;
  ibv_mr* (*reg_mr)(ibv_pd*, void*, size_t, int);
  decltype(&ibv_dereg_mr) dereg_mr;
  decltype(&ibv_create_comp_channel) create_comp_channel;
  decltype(&ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&ibv_create_cq) create_cq;
  decltype(&ibv_destroy_cq) destroy_cq;
  decltype(&ibv_resize_cq) resize_cq;
  decltype(&ibv_get_cq_event) get_cq_event;
  decltype(&ibv_ack_cq_events) ack_cq_events;
  decltype(&ibv_create_qp) create_qp;
  decltype(&ibv_modify_qp) modify_qp;
  decltype(&ibv_destroy_qp) destroy_qp;
  decltype(&ibv_get_async_event) get_async_event;
  decltype(&ibv_ack_async_event) ack_async_event;
  decltype(&ibv_fork_init) fork_init;

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
