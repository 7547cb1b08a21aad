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
  if (command == FI_GETWAIT) {
    *static_cast<int*>(argument) = queue->wait_descriptor;
    return 0;
  }
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) = FI_WAIT_FD;
    return 0;
  }
  return -FI_ENOSYS;
}

fi_ops* FidTable() {
  static fi_ops table = FidOperations(Close, nullptr, Control);
  return &table;
}

size_t EntryBytes(fi_cq_format format) {
  switch (format) {
    case FI_CQ_FORMAT_MSG:
      return sizeof(fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
      return sizeof(fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED:
      return sizeof(fi_cq_tagged_entry);
    default:
      return sizeof(fi_cq_entry);
  }
}

ssize_t ReadFrom(fid_cq* client, void* buffer, size_t count, fi_addr_t* sources) {
  auto* queue = As<Queue>(client);
  Domain& domain = *queue->domain;
  const std::lock_guard<std::mutex> lock(domain.mutex);
  Transmit(domain);
  Drain(*queue);
  const size_t bytes = EntryBytes(queue->format);
  size_t read = 0;
  ssize_t result = -FI_EAGAIN;
  while (read < count && !queue->completions.empty()) {
    const auto first = queue->completions.begin();
    if (first->first > Clock::now()) break;
    const Completion& completion = first->second;
    if (completion.entry.err != 0) {
      result = -FI_EAVAIL;
      break;
    }
    // The smaller formats are beginnings of the larger ones.
    const fi_cq_tagged_entry entry = {completion.entry.op_context, completion.entry.flags,
                                      completion.entry.len,        completion.entry.buf,
                                      completion.entry.data,       0};
    std::memcpy(static_cast<char*>(buffer) + read * bytes, &entry, bytes);
    if (sources != nullptr) sources[read] = completion.source;
    queue->completions.erase(first);
    ++read;
  }
  Settle(domain);
  return read > 0 ? static_cast<ssize_t>(read) : result;
}

ssize_t Read(fid_cq* client, void* buffer, size_t count) {
  return ReadFrom(client, buffer, count, nullptr);
}

ssize_t ReadError(fid_cq* client, fi_cq_err_entry* entry, uint64_t) {
  auto* queue = As<Queue>(client);
  const std::lock_guard<std::mutex> lock(queue->domain->mutex);
  if (queue->completions.empty()) return -FI_EAGAIN;
  const auto first = queue->completions.begin();
  if (first->first > Clock::now() || first->second.entry.err == 0) return -FI_EAGAIN;
  void* error_data = entry->err_data;
  *entry = first->second.entry;
  entry->err_data = error_data;
  queue->completions.erase(first);
  Settle(*queue->domain);
  return 1;
}

int Milliseconds(Clock::time_point deadline, int timeout) {
  if (timeout < 0) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

ssize_t SleepReadFrom(fid_cq* client, void* buffer, size_t count, fi_addr_t* sources, const void*,
                      int timeout) {
  auto* queue = As<Queue>(client);
  if (queue->wait_descriptor < 0) return -FI_ENOSYS;
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout);
  while (true) {
    const ssize_t read = ReadFrom(client, buffer, count, sources);
    if (read != -FI_EAGAIN) return read;
    {
      const std::lock_guard<std::mutex> lock(queue->domain->mutex);
      if (queue->signaled) {
        queue->signaled = false;
        Settle(*queue->domain);
        return -FI_EAGAIN;
      }
    }
    const int left = Milliseconds(deadline, timeout);
    if (left == 0) return -FI_EAGAIN;
    fid* waited = &queue->fid;
    if (fi_trywait(queue->domain->fabric, &waited, 1) != 0) continue;
    pollfd wanted = {queue->wait_descriptor, POLLIN, 0};
    poll(&wanted, 1, left);
  }
}

ssize_t SleepRead(fid_cq* client, void* buffer, size_t count, const void* condition, int timeout) {
  return SleepReadFrom(client, buffer, count, nullptr, condition, timeout);
}

int Signal(fid_cq* client) {
  auto* queue = As<Queue>(client);
  const std::lock_guard<std::mutex> lock(queue->domain->mutex);
  queue->signaled = true;
  Settle(*queue->domain);
  return 0;
}

const char* ErrorString(fid_cq* client, int error, const void* data, char* buffer, size_t length) {
  return fi_cq_strerror(As<Queue>(client)->real, error, data, buffer, length);
}

fi_ops_cq* Operations() {
  static fi_ops_cq table = {sizeof(fi_ops_cq), Read,          ReadFrom, ReadError,
                            SleepRead,         SleepReadFrom, Signal,   ErrorString};
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
  if (waits && attributes->wait_obj != FI_WAIT_FD && attributes->wait_obj != FI_WAIT_UNSPEC) {
    return -FI_ENOSYS;
  }
  auto queue = std::make_unique<Queue>();
  queue->domain = domain;
  queue->format = attributes->format;
  fi_cq_attr real = *attributes;
  real.format = FI_CQ_FORMAT_DATA;
  if (waits) real.wait_obj = FI_WAIT_FD;
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
