// Completion queues as clients see them.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "objects.h"

namespace faulty_libfabric {
namespace {

int Close(fid* client) {
  auto* queue = As<Queue>(client);
  {
    Domain& domain = *queue->domain;
    const std::lock_guard<std::mutex> lock(domain.mutex);
    if (queue->users > 0) return -FI_EBUSY;
    if (const int error = fi_close(&queue->real->fid); error != 0) return error;
    domain.queues.erase(queue);
    --domain.users;
  }
  if (queue->wait_descriptor >= 0) {
    close(queue->wait_descriptor);
    close(queue->timer);
  }
  delete queue;
  Count(&FaultyLibfabricCounters::completion_queues, -1);
  return 0;
}

int Control(fid* client, int command, void* argument) {
  auto* queue = As<Queue>(client);
  if (queue->wait_descriptor < 0) return -FI_ENODATA;
  if (command != FI_GETWAIT) return -FI_ENOSYS;
  *static_cast<int*>(argument) = queue->wait_descriptor;
  return 0;
}

fi_ops* FidTable() {
  static fi_ops table = FidOperations(Close, nullptr, Control);
  return &table;
}

ssize_t Read(fid_cq* client, void* buffer, size_t count) {
  auto* queue = As<Queue>(client);
  Domain& domain = *queue->domain;
  const std::lock_guard<std::mutex> lock(domain.mutex);
  Transmit(domain);
  Drain(*queue);
  size_t read = 0;
  ssize_t result = -FI_EAGAIN;
  while (read < count && IsReady(*queue)) {
    const auto first = queue->completions.begin();
    const fi_cq_err_entry& entry = first->second.entry;
    if (entry.err != 0) {
      result = -FI_EAVAIL;
      break;
    }
    static_cast<fi_cq_data_entry*>(buffer)[read] = {entry.op_context, entry.flags, entry.len,
                                                    entry.buf, entry.data};
    queue->completions.erase(first);
    ++read;
  }
  Settle(domain);
  return read > 0 ? static_cast<ssize_t>(read) : result;
}

ssize_t ReadError(fid_cq* client, fi_cq_err_entry* entry, uint64_t) {
  auto* queue = As<Queue>(client);
  const std::lock_guard<std::mutex> lock(queue->domain->mutex);
  const auto first = queue->completions.begin();
  if (!IsReady(*queue) || first->second.entry.err == 0) return -FI_EAGAIN;
  void* error_data = entry->err_data;
  *entry = first->second.entry;
  entry->err_data = error_data;
  queue->completions.erase(first);
  Settle(*queue->domain);
  return 1;
}

fi_ops_cq* Operations() {
  static fi_ops_cq table = [] {
    fi_ops_cq made = RefuseAll(fi_ops_cq{});
    made.read = Read;
    made.readerr = ReadError;
    return made;
  }();
  return &table;
}

// What becomes readable when the real queue's domain can make progress. With "net" up to 1.18, the
// queue's descriptor never becomes unreadable after its first completion, as fi_trywait() does not
// reset its signal. It is an epoll descriptor that holds another one, for the sockets.
int ProgressDescriptor(int wait_descriptor) {
  std::ifstream lines("/proc/self/fdinfo/" + std::to_string(wait_descriptor));
  std::string word;
  while (lines >> word) {
    int held = -1;
    if (word != "tfd:" || !(lines >> held)) continue;
    std::array<char, 64> target = {};
    const std::string link = "/proc/self/fd/" + std::to_string(held);
    if (readlink(link.c_str(), target.data(), target.size() - 1) < 0) continue;
    if (std::strcmp(target.data(), "anon_inode:[eventpoll]") == 0) return held;
  }
  return wait_descriptor;
}

// Joins the real queue's descriptor and a timer in one descriptor.
int MakeWaitDescriptor(Queue& queue) {
  int real = -1;
  if (const int error = fi_control(&queue.real->fid, FI_GETWAIT, &real); error != 0) return error;
  if (Current()->wait != Wait::kStuck) real = ProgressDescriptor(real);
  queue.wait_descriptor = epoll_create1(EPOLL_CLOEXEC);
  queue.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  epoll_event event = {};
  event.events = EPOLLIN;
  for (int descriptor : {real, queue.timer}) {
    if (epoll_ctl(queue.wait_descriptor, EPOLL_CTL_ADD, descriptor, &event) != 0) {
      const int error = errno;
      close(queue.wait_descriptor);
      close(queue.timer);
      return -error;
    }
  }
  return 0;
}

}  // namespace

int OpenQueue(fid_domain* client, fi_cq_attr* attributes, fid_cq** opened, void* context) {
  auto* domain = As<Domain>(client);
  const bool waits = attributes->wait_obj != FI_WAIT_NONE;
  const Wait wait = Current()->wait;
  if (waits && (wait == Wait::kNone || (wait == Wait::kRemote && !domain->only_remote))) {
    return -FI_ENOSYS;
  }
  if (attributes->format != FI_CQ_FORMAT_DATA || (waits && attributes->wait_obj != FI_WAIT_FD)) {
    return -FI_ENOSYS;
  }
  auto queue = std::make_unique<Queue>();
  queue->domain = domain;
  fi_cq_attr real = *attributes;
  const std::lock_guard<std::mutex> lock(domain->mutex);
  if (const int error = fi_cq_open(domain->real, &real, &queue->real, context); error != 0) {
    return error;
  }
  if (waits) {
    if (const int error = MakeWaitDescriptor(*queue); error != 0) {
      fi_close(&queue->real->fid);
      return error;
    }
  }
  attributes->size = real.size;
  queue->fid.fclass = FI_CLASS_CQ;
  queue->fid.context = context;
  queue->fid.ops = FidTable();
  queue->ops = Operations();
  domain->queues.insert(queue.get());
  ++domain->users;
  *opened = queue.release();
  Count(&FaultyLibfabricCounters::completion_queues);
  return 0;
}

}  // namespace faulty_libfabric
