// Devices, their attributes, and their asynchronous events.

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "fake.h"
#include "wait.h"

#undef ibv_query_port

namespace fake_ibverbs {
namespace {

Device* DeviceNamed(Fake* fake, const std::string& name) {
  std::unique_ptr<Device>& slot = fake->devices[name];
  if (slot == nullptr) {
    slot = std::make_unique<Device>();
    slot->node_type = IBV_NODE_CA;
    slot->transport_type = IBV_TRANSPORT_IB;
    slot->guid = 0x5054000000000001 + fake->devices.size();
    std::snprintf(slot->name, sizeof(slot->name), "%s", name.c_str());
    std::snprintf(slot->dev_name, sizeof(slot->dev_name), "uverbs%zu", fake->devices.size() - 1);
  }
  return slot.get();
}

void FillPort(const PortConfig& port, ibv_port_attr* attr) {
  *attr = {};
  attr->state = port.state;
  attr->max_mtu = port.max_mtu;
  attr->active_mtu = port.active_mtu;
  attr->gid_tbl_len = static_cast<int>(port.gids.size());
  attr->port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  attr->max_msg_sz = port.max_msg_sz;
  attr->pkey_tbl_len = static_cast<uint16_t>(port.pkeys.size());
  attr->lid = port.lid;
  attr->sm_lid = port.link_layer == IBV_LINK_LAYER_INFINIBAND ? 1 : 0;
  attr->max_vl_num = 1;
  attr->active_width = port.active_width;
  attr->active_speed = port.active_speed;
  attr->phys_state = port.state == IBV_PORT_DOWN ? 3 : 5;
  attr->link_layer = port.link_layer;
  attr->flags = port.grh_required ? IBV_QPF_GRH_REQUIRED : 0;
}

// The bytes of the attributes that the caller knows of.
int QueryPort(ibv_context* context, uint8_t number, void* attr, size_t length) {
  Call call("query_port", context);
  if (call.error != 0) return call.error;
  const PortConfig* port = call.fake.PortOf(context, number);
  if (port == nullptr) return EINVAL;
  // Of newer versions of the library, behind the others.
  struct {
    ibv_port_attr known;
    uint32_t active_speed_ex;
  } filled;
  static_assert(offsetof(decltype(filled), active_speed_ex) == 52);
  FillPort(*port, &filled.known);
  filled.active_speed_ex = static_cast<uint32_t>(port->active_speed_ex);
  std::memset(attr, 0, length);
  std::memcpy(attr, &filled, std::min(length, sizeof(filled)));
  return 0;
}

int QueryPortInFull(ibv_context* context, uint8_t number, ibv_port_attr* attr, size_t length) {
  return QueryPort(context, number, attr, length);
}

Context* MakeContext(Fake* fake, Device* device) {
  auto* context = new Context();
  if (!context->ready.Open()) {
    delete context;
    return nullptr;
  }
  context->fake = fake;
  context->owner = device;
  context->sz = sizeof(verbs_context);
  context->query_port = &QueryPortInFull;
  ibv_context* shown = &context->context;
  shown->device = device;
  shown->abi_compat = __VERBS_ABI_IS_EXTENDED;
  shown->cmd_fd = -1;
  shown->async_fd = context->ready.fd;
  shown->num_comp_vectors = fake->ConfigOf(shown).comp_vectors;
  shown->ops.poll_cq = &PollCq;
  shown->ops.req_notify_cq = &RequestNotify;
  shown->ops.post_send = &PostSend;
  shown->ops.post_recv = &PostReceive;
  return context;
}

int ErrnoResult(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

void CountUnacked(const ibv_async_event& event, int change) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      static_cast<Cq*>(event.element.cq)->unacked_async_events += change;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      static_cast<Qp*>(event.element.qp)->unacked_async_events += change;
      break;
    default:
      break;
  }
}

}  // namespace

bool EventFd::Open() {
  // Blocking until the application says otherwise; the library itself never reads it when empty.
  fd = eventfd(0, EFD_CLOEXEC);
  return fd >= 0;
}

void EventFd::Close() {
  if (fd >= 0) close(fd);
  fd = -1;
}

void EventFd::Set(bool readable) {
  if (readable == raised) return;
  raised = readable;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t done = 0;
  if (readable) {
    done = write(fd, &one, sizeof(one));
  } else {
    done = read(fd, &one, sizeof(one));
  }
}

bool WaitReadable(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return false;
  if ((flags & O_NONBLOCK) != 0) {
    errno = EAGAIN;
    return false;
  }
  pollfd wanted = {fd, POLLIN, 0};
  return poll(&wanted, 1, -1) >= 0;
}

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  Call call("get_device_list");
  if (call.error != 0) return NullWith<ibv_device*>(call.error);
  const std::vector<std::string>& names = call.fake.config.names;
  auto** list = new ibv_device*[names.size() + 1]();
  for (size_t i = 0; i < names.size(); ++i) {
    list[i] = DeviceNamed(&call.fake, names[i]);
    const std::string& sysfs = call.fake.config.devices.at(names[i]).sysfs;
    std::snprintf(list[i]->ibdev_path, sizeof(list[i]->ibdev_path), "%s", sysfs.c_str());
  }
  if (count != nullptr) *count = static_cast<int>(names.size());
  ++call.fake.stats.device_lists;
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  Call call("free_device_list");
  --call.fake.stats.device_lists;
  delete[] list;
}

const char* ibv_get_device_name(ibv_device* device) { return device->name; }

__be64 ibv_get_device_guid(ibv_device* device) {
  return htobe64(static_cast<Device*>(device)->guid);
}

ibv_context* ibv_open_device(ibv_device* device) {
  Call call("open_device");
  if (call.error != 0) return NullWith<ibv_context>(call.error);
  const auto config = call.fake.config.devices.find(device->name);
  if (config == call.fake.config.devices.end()) return NullWith<ibv_context>(ENODEV);
  if (config->second.open_error != 0) return NullWith<ibv_context>(config->second.open_error);
  Context* context = MakeContext(&call.fake, static_cast<Device*>(device));
  if (context == nullptr) return NullWith<ibv_context>(EMFILE);
  call.fake.contexts.push_back(context);
  ++call.fake.stats.contexts;
  return &context->context;
}

int ibv_close_device(ibv_context* shown) {
  Call call("close_device", shown, Call::Kind::kEnd);
  if (call.error != 0) return call.error;
  Context* context = ContextOf(shown);
  if (context->users != 0) return EBUSY;
  std::vector<Context*>& contexts = call.fake.contexts;
  contexts.erase(std::find(contexts.begin(), contexts.end(), context));
  context->ready.Close();
  delete context;
  --call.fake.stats.contexts;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  Call call("query_device", context);
  if (call.error != 0) return call.error;
  const DeviceConfig& config = call.fake.ConfigOf(context);
  *attr = {};
  std::snprintf(attr->fw_ver, sizeof(attr->fw_ver), "0.0.fake");
  attr->node_guid = attr->sys_image_guid = htobe64(ContextOf(context)->owner->guid);
  attr->max_mr_size = UINT64_MAX;
  attr->page_size_cap = 4096;
  attr->max_qp = config.max_qp;
  attr->max_qp_wr = config.max_qp_wr;
  attr->device_cap_flags = IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_RC_RNR_NAK_GEN;
  attr->max_sge = attr->max_sge_rd = config.max_sge;
  attr->max_cq = 1 << 16;
  attr->max_cqe = config.max_cqe;
  attr->max_mr = config.max_mr;
  attr->max_pd = 1 << 16;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = config.max_qp_rd_atom;
  attr->max_res_rd_atom = config.max_qp_rd_atom * config.max_qp;
  attr->atomic_cap = IBV_ATOMIC_NONE;
  attr->max_pkeys = static_cast<uint16_t>(config.ports.front().pkeys.size());
  attr->local_ca_ack_delay = 16;
  attr->phys_port_cnt = static_cast<uint8_t>(config.ports.size());
  return 0;
}

// The exported function writes what the oldest callers have room for, as the real one does.
int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  return QueryPort(context, port, attr, offsetof(ibv_port_attr, flags) + 1);
}

int ibv_query_gid(ibv_context* context, uint8_t number, int index, ibv_gid* gid) {
  Call call("query_gid", context);
  if (call.error != 0) return ErrnoResult(call.error);
  const PortConfig* port = call.fake.PortOf(context, number);
  if (port == nullptr || index < 0 || index >= static_cast<int>(port->gids.size())) {
    return ErrnoResult(EINVAL);
  }
  *gid = port->gids[static_cast<size_t>(index)].gid;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t number, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t entry_size) {
  Call call("query_gid", context);
  if (call.error != 0) return call.error;
  const PortConfig* port = call.fake.PortOf(context, number);
  if (port == nullptr || index >= port->gids.size() || flags != 0) return EINVAL;
  if (!port->gids[index].present) return ENODATA;
  ibv_gid_entry filled = {};
  filled.gid = port->gids[index].gid;
  filled.gid_index = index;
  filled.port_num = number;
  filled.gid_type = port->gids[index].type;
  filled.ndev_ifindex = port->link_layer == IBV_LINK_LAYER_ETHERNET ? 1 : 0;
  std::memset(entry, 0, entry_size);
  std::memcpy(entry, &filled, std::min(entry_size, sizeof(filled)));
  return 0;
}

int ibv_query_pkey(ibv_context* context, uint8_t number, int index, __be16* pkey) {
  Call call("query_pkey", context);
  if (call.error != 0) return ErrnoResult(call.error);
  const PortConfig* port = call.fake.PortOf(context, number);
  if (port == nullptr || index < 0 || index >= static_cast<int>(port->pkeys.size())) {
    return ErrnoResult(EINVAL);
  }
  *pkey = htobe16(port->pkeys[static_cast<size_t>(index)]);
  return 0;
}

int ibv_get_async_event(ibv_context* shown, ibv_async_event* event) {
  for (;;) {
    int fd = -1;
    {
      Call call("get_async_event", shown, Call::Kind::kEnd);
      if (call.error != 0) return ErrnoResult(call.error);
      Context* context = ContextOf(shown);
      if (!context->events.empty()) {
        *event = context->events.front();
        context->events.pop_front();
        context->ready.Set(!context->events.empty());
        CountUnacked(*event, 1);
        return 0;
      }
      fd = context->ready.fd;
    }
    if (!WaitReadable(fd)) return -1;
  }
}

void ibv_ack_async_event(ibv_async_event* event) {
  Call call("ack_async_event");
  CountUnacked(*event, -1);
}

int ibv_fork_init() {
  Call call("fork_init");
  return call.error;
}

ibv_fork_status ibv_is_fork_initialized() {
  Call call("is_fork_initialized");
  return call.fake.config.fork;
}

}  // extern "C"

}  // namespace fake_ibverbs
