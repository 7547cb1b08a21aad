#include "fabric/libfabric/domain.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "base/spin.h"
#include "fabric/libfabric/sockets.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr size_t kFramesPerSlab = 128;  // 2 MiB
constexpr size_t kMaxReceives = 256;
constexpr int kKeyAttempts = 8;
constexpr int kEntries = 32;
constexpr Nanos kProbeTimeout = kSecond;
constexpr int kProbeTries = 1000;  // at least, on a busy host
constexpr int kMaxSpins = 20;      // of about a microsecond
constexpr int kMaxSkips = 16;

}  // namespace

Status Domain::Open(std::shared_ptr<const Library> library, const fi_info* info,
                    std::unique_ptr<Domain>* domain) {
  std::unique_ptr<Domain> made(new Domain(std::move(library)));
  RDMA_RETURN_IF_ERROR(made->Init(info));
  *domain = std::move(made);
  return OkStatus();
}

Domain::~Domain() {
  Stop();
  if (Usable()) return;
  // The library's objects belong to the process that forked this one.
  (void)queue_.release();
  (void)peers_.release();
  (void)domain_.release();
  (void)fabric_.release();
}

void Domain::Stop() {
  if (!Usable()) {
    (void)endpoint_.release();
    return;
  }
  // Some providers count the registrations of an endpoint, and keep it open for them.
  if (traits_.binds_to_endpoint) slab_registrations_.clear();
  endpoint_.reset();
  slab_registrations_.clear();
}

Status Domain::Init(const fi_info* info) {
  provider_ = info->fabric_attr->prov_name;
  const uint64_t modes = static_cast<uint64_t>(info->domain_attr->mr_mode);
  traits_.protocol = info->ep_attr->protocol;
  traits_.protocol_version = info->ep_attr->protocol_version;
  traits_.address_format = info->addr_format;
  traits_.local_registration = (modes & FI_MR_LOCAL) != 0;
  traits_.virtual_addresses = (modes & FI_MR_VIRT_ADDR) != 0;
  traits_.chooses_keys = (modes & FI_MR_PROV_KEY) != 0;
  traits_.binds_to_endpoint = (modes & FI_MR_ENDPOINT) != 0;
  traits_.cheap_registration = (modes & (FI_MR_ALLOCATED | FI_MR_LOCAL)) == 0;
  traits_.key_bytes = info->domain_attr->mr_key_size;
  traits_.largest_transfer = info->ep_attr->max_msg_size;
  most_receives_ = std::min(std::max<size_t>(info->rx_attr->size, 1), kMaxReceives);
  if (info->ep_attr->max_msg_size < kFrameBytes) {
    return Status(Code::kUnimplemented, provider_ + ": its messages are too short");
  }
  const auto done = [this](long error, const char* what) {  // NOLINT(runtime/int)
    return error == 0 ? OkStatus() : library_->Error(error, std::string(what) + " of " + provider_);
  };
  fid_fabric* fabric = nullptr;
  RDMA_RETURN_IF_ERROR(done(library_->fabric(info->fabric_attr, &fabric, nullptr), "fi_fabric"));
  fabric_.reset(fabric);
  // The calls below take an info that is not const, and do not change it.
  auto* writable = const_cast<fi_info*>(info);
  fid_domain* domain = nullptr;
  RDMA_RETURN_IF_ERROR(done(fi_domain(fabric, writable, &domain, nullptr), "fi_domain"));
  domain_.reset(domain);
  fi_av_attr table = {};
  table.type = info->domain_attr->av_type;
  fid_av* peers = nullptr;
  RDMA_RETURN_IF_ERROR(done(fi_av_open(domain, &table, &peers, nullptr), "fi_av_open"));
  peers_.reset(peers);
  RDMA_RETURN_IF_ERROR(OpenQueue(info->tx_attr->size + info->rx_attr->size));
  fid_ep* endpoint = nullptr;
  RDMA_RETURN_IF_ERROR(done(fi_endpoint(domain, writable, &endpoint, nullptr), "fi_endpoint"));
  endpoint_.reset(endpoint);
  RDMA_RETURN_IF_ERROR(done(fi_ep_bind(endpoint, &peers->fid, 0), "fi_ep_bind"));
  RDMA_RETURN_IF_ERROR(
      done(fi_ep_bind(endpoint, &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind"));
  RDMA_RETURN_IF_ERROR(done(fi_enable(endpoint), "fi_enable"));
  char name[kMaxName];
  size_t length = sizeof(name);
  RDMA_RETURN_IF_ERROR(done(fi_getname(&endpoint->fid, name, &length), "fi_getname"));
  name_.assign(name, length);
  traits_.remote_data = info->domain_attr->cq_data_size >= sizeof(uint32_t) && AnnouncesWrites();
  return OkStatus();
}

// What a provider says of remote data is not what it does: CXI has FI_RMA_EVENT, 8 bytes for the
// data, and no fi_writedata(); EFA has no FI_RMA_EVENT, and it works there. So this endpoint writes
// to itself, in both ways in which channels write. What does not arrive soon never does.
bool Domain::AnnouncesWrites() {
  const Nanos deadline = Now() + kProbeTimeout;
  int tries = 0;
  fi_addr_t self = FI_ADDR_UNSPEC;
  Frame frame;
  std::shared_ptr<Registration> target;
  if (!Reach(name_, &self).ok() || !NewFrame(&frame)) return false;
  if (!Register(frame.data, kFrameBytes, FI_REMOTE_WRITE, &target).ok()) return false;
  for (const bool delivered : {false, true}) {
    Operation* probe = &probes_[delivered ? 1 : 0];
    probe->kind = Operation::Kind::kWrite;
    const uint32_t data = delivered ? 2 : 1;  // of no channel
    ssize_t started = -FI_EAGAIN;
    bool ended = false;
    bool arrived = false;
    while (!ended || !arrived) {
      if (started == -FI_EAGAIN) {
        started = Write(probe, frame.data, kMarkLength, frame.descriptor, self,
                        target->base() + kMarkLength, target->key(), &data, delivered);
      }
      std::vector<Completion> completions;
      Status error;
      if (!Completions(&completions, &error)) return false;
      for (const Completion& completion : completions) {
        if (!completion.status.ok()) return false;
        if (completion.operation == probe) ended = true;
        if (completion.operation == nullptr && completion.data == data) arrived = true;
      }
      if (started != 0 && started != -FI_EAGAIN) return false;
      if (++tries > kProbeTries && Now() > deadline) return false;
      SpinBriefly();
    }
  }
  Leave(name_);
  return true;
}

// A provider without descriptors to wait on, such as EFA before 2.5, is asked at short intervals.
Status Domain::OpenQueue(size_t size) {
  fid_cq* queue = nullptr;
  int error = 0;
  for (const fi_wait_obj wait : {FI_WAIT_FD, FI_WAIT_NONE}) {
    fi_cq_attr attributes = {};
    attributes.size = size;
    attributes.format = FI_CQ_FORMAT_DATA;
    attributes.wait_obj = wait;
    error = fi_cq_open(domain_.get(), &attributes, &queue, nullptr);
    if (error != 0) continue;
    queue_.reset(queue);
    traits_.waits =
        wait == FI_WAIT_FD && fi_control(&queue->fid, FI_GETWAIT, &wait_) == 0 && wait_ >= 0;
    return OkStatus();
  }
  return library_->Error(error, "fi_cq_open of " + provider_);
}

std::string Domain::Text(const std::string& name) const {
  std::string host;
  uint16_t port = 0;
  if (!ReadSocketAddress(traits_.address_format, name, &host, &port)) {
    return Hex(name.substr(0, 32));
  }
  if (traits_.address_format == FI_SOCKADDR_IN6) host = "[" + host + "]";
  return host + ":" + std::to_string(port);
}

std::string Domain::HostOf(const std::string& name) const {
  std::string host;
  uint16_t port = 0;
  ReadSocketAddress(traits_.address_format, name, &host, &port);
  return host;
}

bool Domain::IsLoopback(const std::string& name) const {
  const std::string host = HostOf(name);
  return host == "::1" || host.compare(0, 4, "127.") == 0;
}

// --- Peers and memory ---

Status Domain::Reach(const std::string& name, fi_addr_t* peer) {
  // The provider reads as many bytes as its own names have, or as the family in front of them says.
  const bool socket =
      traits_.address_format == FI_SOCKADDR_IN || traits_.address_format == FI_SOCKADDR_IN6;
  const size_t family = socket ? sizeof(sa_family_t) : 0;
  if (name.size() != name_.size() || name.compare(0, family, name_, 0, family) != 0) {
    return Status(Code::kInvalidArgument, "the address of a peer is not one of " + provider_);
  }
  std::lock_guard<std::mutex> lock(peers_mu_);
  Peer& known = known_[name];
  if (known.users == 0) {
    const int inserted = fi_av_insert(peers_.get(), name.data(), 1, &known.address, 0, nullptr);
    if (inserted != 1) {
      known_.erase(name);
      return library_->Error(inserted < 0 ? inserted : -FI_EINVAL, "fi_av_insert of " + provider_);
    }
  }
  ++known.users;
  *peer = known.address;
  return OkStatus();
}

void Domain::Leave(const std::string& name) {
  std::lock_guard<std::mutex> lock(peers_mu_);
  const auto found = known_.find(name);
  if (found == known_.end() || --found->second.users > 0) return;
  if (Usable()) fi_av_remove(peers_.get(), &found->second.address, 1, 0);
  known_.erase(found);
}

Status Domain::Register(char* address, size_t length, uint64_t access,
                        std::shared_ptr<Registration>* registration) {
  const uint64_t local = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
  const uint64_t mask =
      traits_.key_bytes >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * traits_.key_bytes)) - 1;
  fid_mr* made = nullptr;
  int error = 0;
  // Keys are random, so that one cannot be guessed; one may already be in use.
  for (int attempt = 0; attempt < kKeyAttempts; ++attempt) {
    const uint64_t key = traits_.chooses_keys ? 0 : Random64() & mask;
    error = fi_mr_reg(domain_.get(), address, length, access | local, 0, key, 0, &made, nullptr);
    if (error != -FI_ENOKEY) break;
  }
  Owned<fid_mr> region(error == 0 ? made : nullptr);
  if (error == 0 && traits_.binds_to_endpoint) {
    error = fi_mr_bind(made, &endpoint_->fid, 0);
    if (error == 0) error = fi_mr_enable(made);
  }
  if (error != 0) {
    const Status failed = library_->Error(
        error, "registering " + std::to_string(length) + " bytes with " + provider_);
    return Status(Code::kResourceExhausted, failed.message());
  }
  *registration =
      std::make_shared<Registration>(std::move(region), address, traits_.virtual_addresses);
  return OkStatus();
}

bool Domain::NewFrame(Frame* frame) {
  if (frames_left_ == 0) {
    std::unique_ptr<host::MemoryRegion> slab;
    const Status made = host::MemoryRegion::Create(0, kFramesPerSlab * kFrameBytes,
                                                   Access::kRemoteRead, nullptr, &slab);
    if (!made.ok()) return false;
    next_frame_ = {slab->address(), nullptr};
    if (traits_.local_registration) {
      std::shared_ptr<Registration> registration;
      if (!Register(slab->address(), slab->length(), 0, &registration).ok()) return false;
      next_frame_.descriptor = registration->descriptor();
      slab_registrations_.push_back(std::move(registration));
    }
    slabs_.push_back(std::move(slab));
    frames_left_ = kFramesPerSlab;
  }
  --frames_left_;
  *frame = next_frame_;
  next_frame_.data += kFrameBytes;
  return true;
}

// --- Operations ---

ssize_t Domain::Receive(Operation* operation) {
  return fi_recv(endpoint_.get(), operation->frame.data, kFrameBytes, operation->frame.descriptor,
                 FI_ADDR_UNSPEC, &operation->context);
}

template <typename Start>
ssize_t Domain::BesidePolling(Start start) {
  starting_.fetch_add(1);
  for (int spins = 0; polling_.load() && spins < kMaxSpins; ++spins) SpinBriefly();
  const ssize_t result = start();
  starting_.fetch_sub(1);
  return result;
}

ssize_t Domain::Send(Operation* operation, size_t length, fi_addr_t peer) {
  return BesidePolling([&] {
    return fi_send(endpoint_.get(), operation->frame.data, length, operation->frame.descriptor,
                   peer, &operation->context);
  });
}

ssize_t Domain::Write(Operation* operation, const char* source, size_t length, void* descriptor,
                      fi_addr_t peer, uint64_t address, uint64_t key, const uint32_t* data,
                      bool delivered) {
  if (data != nullptr && !delivered) {
    return BesidePolling([&] {
      return fi_writedata(endpoint_.get(), source, length, descriptor, *data, peer, address, key,
                          &operation->context);
    });
  }
  const iovec local = {const_cast<char*>(source), length};
  const fi_rma_iov remote = {address, length, key};
  fi_msg_rma message = {};
  message.msg_iov = &local;
  message.desc = &descriptor;
  message.iov_count = 1;
  message.addr = peer;
  message.rma_iov = &remote;
  message.rma_iov_count = 1;
  message.context = &operation->context;
  uint64_t flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
  if (data != nullptr) {
    message.data = *data;
    flags |= FI_REMOTE_CQ_DATA;
  }
  return BesidePolling([&] { return fi_writemsg(endpoint_.get(), &message, flags); });
}

ssize_t Domain::Read(Operation* operation, char* destination, size_t length, void* descriptor,
                     fi_addr_t peer, uint64_t address, uint64_t key) {
  return BesidePolling([&] {
    return fi_read(endpoint_.get(), destination, length, descriptor, peer, address, key,
                   &operation->context);
  });
}

bool Domain::Completions(std::vector<Completion>* ended, Status* error) {
  fi_cq_data_entry entries[kEntries];
  polling_.store(true);
  if (starting_.load() > 0 && ++skipped_ < kMaxSkips) {
    polling_.store(false);
    return true;
  }
  skipped_ = 0;
  const ssize_t count = fi_cq_read(queue_.get(), entries, kEntries);
  polling_.store(false);
  if (count == -FI_EAGAIN) return true;
  if (count == -FI_EAVAIL) return TakeError(ended, error);
  if (count < 0) {
    *error = library_->Error(count, "fi_cq_read of " + provider_);
    return false;
  }
  for (ssize_t i = 0; i < count; ++i) {
    const fi_cq_data_entry& entry = entries[i];
    Completion completion;
    if ((entry.flags & FI_REMOTE_WRITE) != 0) {
      if ((entry.flags & FI_REMOTE_CQ_DATA) == 0) continue;
      completion.data = static_cast<uint32_t>(entry.data);
    } else {
      completion.operation = static_cast<Operation*>(entry.op_context);
      completion.length = entry.len;
    }
    ended->push_back(std::move(completion));
  }
  return true;
}

bool Domain::TakeError(std::vector<Completion>* ended, Status* error) {
  fi_cq_err_entry entry = {};
  const ssize_t count = fi_cq_readerr(queue_.get(), &entry, 0);
  if (count == -FI_EAGAIN) return true;
  if (count < 0) {
    *error = library_->Error(count, "fi_cq_readerr of " + provider_);
    return false;
  }
  // A peer's access to memory here has failed. The peer learns of it, too.
  if ((entry.flags & (FI_REMOTE_WRITE | FI_REMOTE_READ)) != 0 || entry.op_context == nullptr) {
    return true;
  }
  Completion completion;
  completion.operation = static_cast<Operation*>(entry.op_context);
  completion.status = Status(Code::kUnavailable, library_->Error(entry.err, provider_).message());
  ended->push_back(std::move(completion));
  return true;
}

// The descriptor of TCP's queue before libfabric 1.20 stays readable after the first completion. It
// holds the one of its sockets, which tells the truth, and a socket by which it wakes threads.
std::vector<int> Domain::WaitDescriptors() const {
  if (!traits_.waits) return {};
  std::vector<int> below;
  if (FI_VERSION_LT(library_->version(), FI_VERSION(1, 20))) below = WatchedBy(wait_);
  below.erase(std::remove_if(below.begin(), below.end(), IsSocket), below.end());
  return below.empty() ? std::vector<int>{wait_} : below;
}

void Domain::LimitSilenceOf(const std::string& name, Nanos timeout) const {
  const std::string host = HostOf(name);
  if (wait_ < 0 || host.empty()) return;
  // Depending on its release, the library watches its sockets here or one level below.
  for (const int watched : WatchedBy(wait_)) {
    LimitSilence(watched, host, timeout);
    for (const int below : WatchedBy(watched)) LimitSilence(below, host, timeout);
  }
}

bool Domain::TryWait() {
  if (!traits_.waits) return true;
  fid* objects[] = {&queue_->fid};
  return fi_trywait(fabric_.get(), objects, 1) == 0;
}

}  // namespace rdma_transport::fabric::libfabric
