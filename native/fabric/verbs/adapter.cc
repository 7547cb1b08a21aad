#include "fabric/verbs/adapter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "fabric/host/fork_guard.h"
#include "fabric/verbs/errors.h"
#include "fabric/verbs/memlock.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr int kQueueEntries = 4096;  // of a new completion queue, at least
constexpr size_t kMaxDoublings = 12;
// A card can map memory with large pages only if iova and address have the same offset in such a
// page.
constexpr uint64_t kIovaGranule = uint64_t{2} << 20;
// Keeps signed arithmetic and the end of a region from overflowing.
constexpr uint64_t kIovaLimit = uint64_t{1} << 62;

// Peers that may be pending at once, with a ring of each side.
constexpr int64_t kMaxPendingPeers = 256;

uint64_t AddressOf(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

uint64_t RandomIova(uint64_t address) {
  return Random64() % kIovaLimit / kIovaGranule * kIovaGranule + address % kIovaGranule;
}

// Returns whether the requested iova may be the reason why a registration failed.
bool MayBeTheIova(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS || error == ERANGE;
}

Status MakeNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return StatusFromErrno(errno, "fcntl on a verbs event descriptor");
  }
  return OkStatus();
}

}  // namespace

bool CompletionQueue::Reserve(int entries, Resize* resize, int limit) {
  if (broken()) return false;
  std::lock_guard<std::mutex> lock(mu_);
  const int64_t needed = int64_t{reserved_} + entries;
  int64_t wanted = capacity_;
  while (wanted < needed) wanted *= 2;
  wanted = std::min<int64_t>(wanted, limit);
  if (wanted < needed) return false;
  if (wanted != capacity_ && resize(queue_, static_cast<int>(wanted)) != 0) return false;
  capacity_ = static_cast<int>(wanted);
  reserved_ += entries;
  return true;
}

void CompletionQueue::Emptied(int released) {
  std::lock_guard<std::mutex> lock(mu_);
  reserved_ -= released;
}

Registration::~Registration() {
  if (!adapter_->Usable()) return;
  adapter_->registered_.fetch_sub(locked_);
  const int error = adapter_->library().dereg_mr(region_);
  if (error != 0) {
    Log(LogLevel::kWarning, VerbError(error, "ibv_dereg_mr", adapter_->Name()).message());
  }
}

Status Adapter::Open(const VerbsSettings& settings, std::shared_ptr<const Library> library,
                     Port port, std::unique_ptr<Adapter>* adapter) {
  std::unique_ptr<Adapter> made(new Adapter);
  made->generation_ = host::ForkGeneration();
  made->settings_ = settings;
  made->library_ = std::move(library);
  made->known_.push_back(std::make_unique<const Port>(std::move(port)));
  made->port_.store(made->known_.back().get());
  made->active_.store(made->port().known);
  RDMA_RETURN_IF_ERROR(made->Init());
  *adapter = std::move(made);
  return OkStatus();
}

Status Adapter::Init() {
  // A child that keeps these open would keep queue pairs alive and hide this process's death.
  host::GuardDescriptor(port().context->cmd_fd);
  host::GuardDescriptor(port().context->async_fd);
  domain_ = library_->alloc_pd(port().context);
  if (domain_ == nullptr) return VerbError(errno, "ibv_alloc_pd", Name());
  random_addresses_ = settings_.isolation != Isolation::kOff && library_->reg_mr_iova2 != nullptr;
  if (settings_.isolation != Isolation::kOff && !random_addresses_) {
    Log(LogLevel::kInfo,
        "verbs: peers can guess the addresses of memory: this libibverbs cannot choose them "
        "(ibv_reg_mr_iova2 is of rdma-core 28)");
  }
  events_ = library_->create_comp_channel(port().context);
  if (events_ == nullptr) return VerbError(errno, "ibv_create_comp_channel", Name());
  host::GuardDescriptor(events_->fd);
  RDMA_RETURN_IF_ERROR(MakeNonBlocking(events_->fd));
  return MakeNonBlocking(port().context->async_fd);
}

Adapter::~Adapter() {
  if (!Usable()) {
    disposal_.Abandon();
    return;
  }
  disposal_.Wait();
  const auto check = [this](int error, const char* verb) {
    if (error != 0) Log(LogLevel::kWarning, VerbError(error, verb, Name()).message());
  };
  if (events_ != nullptr) DrainCompletionEvents();
  for (const auto& queue : queues_) check(library_->destroy_cq(queue->get()), "ibv_destroy_cq");
  if (events_ != nullptr) {
    host::UnguardDescriptor(events_->fd);
    check(library_->destroy_comp_channel(events_), "ibv_destroy_comp_channel");
  }
  if (domain_ != nullptr) check(library_->dealloc_pd(domain_), "ibv_dealloc_pd");
  if (port().context != nullptr) {
    host::UnguardDescriptor(port().context->cmd_fd);
    host::UnguardDescriptor(port().context->async_fd);
    check(library_->close_device(port().context), "ibv_close_device");
  }
}

Status Adapter::RegistrationFailed(int error, size_t length) const {
  return RegistrationError(MemlockLimit(), error, length, registered_.load(), Name());
}

Status Adapter::Reread() {
  auto read = std::make_unique<Port>();
  RDMA_RETURN_IF_ERROR(ReadAgain(*library_, settings_, port(), read.get()));
  if (read->SameAddress(port())) return OkStatus();
  known_.push_back(std::move(read));
  port_.store(known_.back().get());
  return OkStatus();
}

bool Adapter::Usable() const { return generation_ == host::ForkGeneration(); }

ibv_mr* Adapter::RegisterAt(uint64_t iova, void* address, size_t length, int access, bool relaxed) {
  relaxed = relaxed && library_->reg_mr_iova2 != nullptr;
  // ibv_reg_mr_iova2() drops optional flags that the kernel does not support.
  if (relaxed || iova != AddressOf(address)) {
    return library_->reg_mr_iova2(
        domain_, address, length, iova,
        static_cast<unsigned>(access) | (relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0));
  }
  return library_->reg_mr(domain_, address, length, access);
}

Status Adapter::Register(void* address, size_t length, int access,
                         std::unique_ptr<Registration>* registration) {
  ibv_mr* region =
      RegisterAt(AddressOf(address), address, length, access, settings_.relaxed_ordering);
  if (region == nullptr) return RegistrationFailed(errno, length);
  registration->reset(new Registration(this, region, address, AddressOf(address)));
  registered_.fetch_add((*registration)->locked_ = length);
  return OkStatus();
}

Status Adapter::Expose(void* address, size_t length, int access,
                       std::shared_ptr<Registration>* registration) {
  const auto register_at = [&](uint64_t iova, int allowed) {
    return RegisterAt(iova, address, length, allowed, settings_.relaxed_ordering);
  };
  if (!ExposeBy(register_at, address, access, registration)) {
    return RegistrationFailed(errno, length);
  }
  registered_.fetch_add((*registration)->locked_ = length);
  return OkStatus();
}

Status Adapter::Expose(const DeviceMemory& memory, int access,
                       std::shared_ptr<Registration>* registration) {
  if (memory.file >= 0 && library_->reg_dmabuf_mr == nullptr) {
    return Status(Code::kUnimplemented,
                  "libibverbs is too old to register memory of accelerators: it lacks "
                  "ibv_reg_dmabuf_mr of rdma-core 34");
  }
  // Without relaxed ordering: the card's writes to an accelerator must not pass each other.
  const auto register_at = [&](uint64_t iova, int allowed) {
    if (memory.file < 0) {
      return RegisterAt(iova, memory.address, memory.length, allowed, /*relaxed=*/false);
    }
    return library_->reg_dmabuf_mr(domain_, 0, memory.length, iova, memory.file, allowed);
  };
  if (ExposeBy(register_at, memory.address, access, registration)) return OkStatus();
  return VerbError(errno, memory.file < 0 ? "ibv_reg_mr" : "ibv_reg_dmabuf_mr", Name());
}

bool Adapter::ExposeBy(const std::function<ibv_mr*(uint64_t iova, int access)>& register_at,
                       void* address, int access, std::shared_ptr<Registration>* registration) {
  const uint64_t own = AddressOf(address);
  uint64_t iova = random_addresses_.load() ? RandomIova(own) : own;
  ibv_mr* region = register_at(iova, access);
  if (region == nullptr && iova != own && MayBeTheIova(errno)) {
    iova = own;
    region = register_at(iova, access);
    if (region != nullptr && random_addresses_.exchange(false)) {
      Log(LogLevel::kInfo, "verbs: " + Name() +
                               " maps memory only at its own address, which peers can guess "
                               "(RDMA_TRANSPORT_ISOLATION)");
    }
  }
  if (region == nullptr) return false;
  registration->reset(new Registration(this, region, address, iova));
  return true;
}

bool Adapter::ChargePending(int64_t bytes) {
  const int64_t limit = kMaxPendingPeers * 2 * static_cast<int64_t>(kLargeRing);
  if (pending_.fetch_add(bytes) + bytes <= limit || bytes < 0) return true;
  pending_.fetch_sub(bytes);
  return false;
}

void Adapter::Dispose(ibv_qp* pair, CompletionQueue* queue, int reserved) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RESET;
  const auto destroy = [this, pair, queue, reserved] { Destroy(pair, queue, reserved); };
  // If the card does not reset it, maybe because it has died, access ends when it is destroyed.
  if (library_->modify_qp(pair, &attributes, IBV_QP_STATE) != 0) return destroy();
  disposal_.Add(destroy);
}

void Adapter::Destroy(ibv_qp* pair, CompletionQueue* queue, int reserved) {
  const int error = library_->destroy_qp(pair);
  if (error != 0) Log(LogLevel::kWarning, VerbError(error, "ibv_destroy_qp", Name()).message());
  queue->Release(reserved);
  queue_pairs_.fetch_sub(1);
}

Status Adapter::ReserveCompletions(int entries, CompletionQueue** queue) {
  std::lock_guard<std::mutex> lock(queues_mu_);
  for (const auto& known : queues_) {
    if (known->Reserve(entries, library_->resize_cq, port().attributes.max_cqe)) {
      *queue = known.get();
      return OkStatus();
    }
  }
  // Each queue is twice as large as the one before, so there are few, however many channels.
  const int wanted = kQueueEntries << std::min(queues_.size(), kMaxDoublings);
  const int capacity = std::min(std::max(wanted, entries), port().attributes.max_cqe);
  if (capacity < entries) {
    return Status(Code::kInvalidArgument, "RDMA_TRANSPORT_QUEUE_DEPTH is too large for " + Name() +
                                              ": it needs " + std::to_string(entries) +
                                              " entries of a completion queue, the device has " +
                                              std::to_string(port().attributes.max_cqe));
  }
  // The interrupts of a card's vectors go to different processors. Tasks of a host have different
  // numbers.
  const int vectors = std::max(port().context->num_comp_vectors, 1);
  ibv_cq* made =
      library_->create_cq(port().context, capacity, nullptr, events_, getpid() % vectors);
  if (made == nullptr) {
    return CreationError(errno, "ibv_create_cq", Name(), "completion queues",
                         static_cast<int>(queues_.size()), port().attributes.max_cq);
  }
  queues_.push_back(std::make_unique<CompletionQueue>(made, capacity));
  queues_.back()->Reserve(entries, library_->resize_cq, capacity);
  *queue = queues_.back().get();
  queue_count_.store(queues_.size());
  return OkStatus();
}

const std::vector<CompletionQueue*>& Adapter::Queues() {
  if (queue_count_.load() != known_queues_.size()) {
    std::lock_guard<std::mutex> lock(queues_mu_);
    known_queues_.clear();
    for (const auto& queue : queues_) known_queues_.push_back(queue.get());
  }
  return known_queues_;
}

void Adapter::DrainCompletionEvents() {
  ibv_cq* queue = nullptr;
  void* unused = nullptr;
  while (library_->get_cq_event(events_, &queue, &unused) == 0) {
    library_->ack_cq_events(queue, 1);
  }
}

bool Adapter::NextAsyncEvent(ibv_async_event* event) {
  return library_->get_async_event(port().context, event) == 0;
}

}  // namespace rdma_transport::fabric::verbs
