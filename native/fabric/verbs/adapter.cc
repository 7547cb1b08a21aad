#include "fabric/verbs/adapter.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "fabric/host/fork_guard.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr int kQueueEntries = 4096;

Status MakeNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return StatusFromErrno(errno, "fcntl on a verbs event descriptor");
  }
  return OkStatus();
}

}  // namespace

bool CompletionQueue::Reserve(int entries) {
  std::lock_guard<std::mutex> lock(mu_);
  if (reserved_ + entries > capacity_) return false;
  reserved_ += entries;
  return true;
}

void CompletionQueue::Emptied(int released) {
  std::lock_guard<std::mutex> lock(mu_);
  reserved_ -= released;
}

Registration::~Registration() {
  if (!adapter_->Usable()) return;
  adapter_->registered_.fetch_sub(region_->length);
  const int error = adapter_->library().dereg_mr(region_);
  if (error != 0) {
    Log(LogLevel::kWarning, VerbError(error, "ibv_dereg_mr", adapter_->Name()).message());
  }
}

Status Adapter::Open(const VerbsSettings& settings, std::unique_ptr<Adapter>* adapter) {
  std::unique_ptr<Adapter> made(new Adapter);
  RDMA_RETURN_IF_ERROR(made->Init(settings));
  *adapter = std::move(made);
  return OkStatus();
}

Status Adapter::Init(const VerbsSettings& settings) {
  generation_ = host::ForkGeneration();
  settings_ = settings;
  RDMA_RETURN_IF_ERROR(LoadLibrary(settings.library, &library_));
  std::vector<std::string> left_out;
  RDMA_RETURN_IF_ERROR(ChoosePort(*library_, settings, &port_, &left_out));
  for (const std::string& reason : left_out) Log(LogLevel::kInfo, "verbs: " + reason);
  // A child that keeps these open would keep queue pairs alive, and hide this process's death.
  host::GuardDescriptor(port_.context->cmd_fd);
  host::GuardDescriptor(port_.context->async_fd);
  domain_ = library_->alloc_pd(port_.context);
  if (domain_ == nullptr) return VerbError(errno, "ibv_alloc_pd", Name());
  events_ = library_->create_comp_channel(port_.context);
  if (events_ == nullptr) return VerbError(errno, "ibv_create_comp_channel", Name());
  host::GuardDescriptor(events_->fd);
  RDMA_RETURN_IF_ERROR(MakeNonBlocking(events_->fd));
  return MakeNonBlocking(port_.context->async_fd);
}

Adapter::~Adapter() {
  if (!Usable()) return;
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
  if (port_.context != nullptr) {
    host::UnguardDescriptor(port_.context->cmd_fd);
    host::UnguardDescriptor(port_.context->async_fd);
    check(library_->close_device(port_.context), "ibv_close_device");
  }
}

bool Adapter::Usable() const { return generation_ == host::ForkGeneration(); }

Status Adapter::Register(void* address, size_t length, int access,
                         std::unique_ptr<Registration>* registration) {
  ibv_mr* region = nullptr;
  // The newer entry drops optional flags that the kernel does not know.
  if (settings_.relaxed_ordering && library_->reg_mr_iova2 != nullptr) {
    region = library_->reg_mr_iova2(domain_, address, length, reinterpret_cast<uint64_t>(address),
                                    static_cast<unsigned>(access) | IBV_ACCESS_RELAXED_ORDERING);
  } else {
    region = library_->reg_mr(domain_, address, length, access);
  }
  if (region == nullptr) return RegistrationError(errno, length, registered_.load(), Name());
  registered_.fetch_add(length);
  registration->reset(new Registration(this, region));
  return OkStatus();
}

Status Adapter::RegisterDmaBuf(int descriptor, uint64_t offset, size_t length, int access,
                               std::unique_ptr<Registration>* registration) {
  if (library_->reg_dmabuf_mr == nullptr) {
    return Status(Code::kUnimplemented,
                  "this libibverbs cannot register accelerator memory (ibv_reg_dmabuf_mr is of "
                  "rdma-core 34)");
  }
  ibv_mr* region = library_->reg_dmabuf_mr(domain_, offset, length, offset, descriptor, access);
  if (region == nullptr) {
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EPROTONOSUPPORT) {
      return Status(Code::kUnimplemented,
                    Name() + " or its driver cannot register accelerator memory by DMA-BUF");
    }
    return VerbError(errno, "ibv_reg_dmabuf_mr", Name());
  }
  registered_.fetch_add(length);
  registration->reset(new Registration(this, region));
  return OkStatus();
}

Status Adapter::ReserveCompletions(int entries, CompletionQueue** queue) {
  std::lock_guard<std::mutex> lock(queues_mu_);
  for (const auto& known : queues_) {
    if (known->Reserve(entries)) {
      *queue = known.get();
      return OkStatus();
    }
  }
  const int capacity = std::min(std::max(kQueueEntries, entries), port_.attributes.max_cqe);
  if (capacity < entries) {
    return Status(Code::kInvalidArgument, "RDMA_TRANSPORT_QUEUE_DEPTH is too large for " + Name() +
                                              ": it needs " + std::to_string(entries) +
                                              " entries of a completion queue, the device has " +
                                              std::to_string(port_.attributes.max_cqe));
  }
  ibv_cq* made = library_->create_cq(port_.context, capacity, nullptr, events_, 0);
  if (made == nullptr) return VerbError(errno, "ibv_create_cq", Name());
  queues_.push_back(std::make_unique<CompletionQueue>(made, capacity));
  queues_.back()->Reserve(entries);
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
  return library_->get_async_event(port_.context, event) == 0;
}

}  // namespace rdma_transport::fabric::verbs
