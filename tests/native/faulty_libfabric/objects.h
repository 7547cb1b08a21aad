// What a client opens. Each object begins with the structure that the client knows, and holds the
// real object. One lock, the domain's, guards all objects of a domain.
#pragma once

#include <sys/uio.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "faults.h"
#include "unsupported.h"

namespace faulty_libfabric {

struct Endpoint;
struct Queue;
struct Region;

struct Fabric : fid_fabric {
  using Base = fid_fabric;
  fid_fabric* real = nullptr;
  bool emulates_rma = false;
};

// A place in an endpoint's transmit queue, taken until the last copy of this goes.
using Slot = std::shared_ptr<void>;

// A posted send, write, read or receive. The real provider gets its address as the context.
struct Operation {
  Endpoint* endpoint = nullptr;
  Kind kind = Kind::kSend;
  void* context = nullptr;
  uint64_t flags = 0;
  iovec buffer = {};
  void* descriptor = nullptr;
  fi_rma_iov remote = {};
  fi_addr_t peer = FI_ADDR_UNSPEC;
  uint64_t data = 0;
  // Of the buffer, when the client may use it again before it is transmitted.
  std::vector<char> copy;
  bool completed_early = false;
  // When the real provider refused it first, after it had waited.
  std::optional<Clock::time_point> refused;
  // Its position among the transmits of the endpoint.
  uint64_t sequence = 0;
  Slot slot;
};

struct Domain : fid_domain {
  using Base = fid_domain;
  Fabric* fabric = nullptr;
  fid_domain* real = nullptr;
  std::string name;
  int mr_mode = 0;
  bool only_remote = false;  // see OnlyRemote()
  std::mutex mutex;
  std::unordered_map<Operation*, std::unique_ptr<Operation>> operations;
  // What is not transmitted yet, by the time when it will be.
  std::multimap<Clock::time_point, Operation*> waiting;
  std::set<Queue*> queues;
  std::set<Region*> regions;
  int users = 0;
};

struct AddressVector : fid_av {
  using Base = fid_av;
  Domain* domain = nullptr;
  fid_av* real = nullptr;
  int users = 0;
};

struct Region : fid_mr {
  using Base = fid_mr;
  Domain* domain = nullptr;
  fid_mr* real = nullptr;
  iovec memory = {};
  uint64_t access = 0;
  uint64_t offset = 0;
  uint64_t requested_key = 0;
  uint64_t flags = 0;
  Endpoint* endpoint = nullptr;
};

struct Completion {
  fi_cq_err_entry entry = {};
  Slot slot;
};

struct Queue : fid_cq {
  using Base = fid_cq;
  Domain* domain = nullptr;
  fid_cq* real = nullptr;
  // By the time when the client may see them.
  std::multimap<Clock::time_point, Completion> completions;
  Clock::time_point latest;
  // What the client sleeps on, or -1: an epoll descriptor of the real one and of the timer.
  int wait_descriptor = -1;
  int timer = -1;
  Clock::time_point armed;
  int users = 0;
};

struct Endpoint : fid_ep {
  using Base = fid_ep;
  Domain* domain = nullptr;
  fid_ep* real = nullptr;
  Queue* transmit = nullptr;
  Queue* receive = nullptr;
  AddressVector* addresses = nullptr;
  bool enabled = false;
  uint64_t max_msg = 0;
  uint64_t max_send = 0;
  uint64_t posted = 0;
  uint64_t highest_transmitted = 0;
  std::shared_ptr<uint64_t> slots = std::make_shared<uint64_t>(0);
  int regions = 0;
};

// The object behind what a client passes in.
template <typename T>
T* As(fid* client) {
  return static_cast<T*>(reinterpret_cast<typename T::Base*>(client));
}
template <typename T>
T* As(typename T::Base* client) {
  return static_cast<T*>(client);
}

// A copy of an info or fabric attribute as the real provider knows it.
struct InfoDeleter {
  void operator()(fi_info* info) const;
};
using InfoPtr = std::unique_ptr<fi_info, InfoDeleter>;
InfoPtr ToReal(const fi_info* info);
// Whether it is for peers on other hosts only.
inline bool OnlyRemote(const fi_info& info) {
  return (info.caps & (FI_LOCAL_COMM | FI_REMOTE_COMM)) == FI_REMOTE_COMM;
}
constexpr char kDirect[] = "efa-direct";  // the name of a fabric

// The description of a card of that speed, in Gb/s, which is this interface of the real provider.
fid_nic* MakeNic(size_t number, uint64_t speed, const std::string& interface);
std::string InterfaceBelow(const fid_nic& nic);

int OpenDomain(fid_fabric* fabric, fi_info* info, fid_domain** opened, void* context);
int OpenAddressVector(fid_domain* domain, fi_av_attr* attributes, fid_av** opened, void* context);
int OpenQueue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** opened, void* context);
int OpenEndpoint(fid_domain* domain, fi_info* info, fid_ep** opened, void* context);
fi_ops_mr* RegionOperations();
fi_ops_msg* MessageOperations();
fi_ops_rma* RmaOperations();

// Accepts an operation, or says why not.
ssize_t Post(std::unique_ptr<Operation> operation);

// The rest is called with the domain's lock held.

// Takes what the real queue has.
void Drain(Queue& queue);
// Shows a completion to the client, now or later.
void Show(Queue& queue, Completion completion);
// Whether the client can read something.
bool IsReady(const Queue& queue);
// Takes what the real queues have, and sets the timers of sleeping clients. After all that may
// complete something.
void Settle(Domain& domain);

// Transmits what has waited long enough.
void Transmit(Domain& domain);
// Transmits what waits at once, if `chosen` returns true, and cancels what cannot be.
void TransmitAll(Domain& domain, const std::function<bool(const Operation&)>& chosen);
// When a held write is looked at again. It is the same for all, so that they keep their order.
Clock::time_point HeldUntil();
// Hands one operation to the real provider.
ssize_t TransmitNow(Operation& operation);
// Completes an operation, by an entry of the real queue or one made up, and forgets it.
void Finish(Operation* operation, fi_cq_err_entry entry);
// The entry of a made-up completion; 0 is success.
fi_cq_err_entry EntryOf(const Operation& operation, int error);
// Whether a region covers the buffer.
bool HasDescriptor(const Operation& operation);

}  // namespace faulty_libfabric
