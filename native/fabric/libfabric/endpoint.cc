#include "fabric/libfabric/endpoint.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fabric/libfabric/providers.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr uint64_t kUsualSpeed = 100'000'000'000;  // of a card, in bits per second
constexpr Nanos kUnderWay = 160 * kMicrosecond;
constexpr uint64_t kPieces = 4;
constexpr Nanos kShortestBlindSleep = 20 * kMicrosecond;
constexpr Nanos kLongestBlindSleep = kMillisecond;

constexpr Nanos kWriteEndDelay = 5 * kMillisecond;
constexpr uint32_t kMinFrames = 8;

// Over TCP, a request to read waits for the bytes that the peer reads here: if these are many, the
// two directions take turns. And what the provider has been given goes first, however small the
// next write. A card needs enough under way for the time until it hears of an end.
Pace PaceOf(const Traits& traits, uint64_t bits_per_second) {
  Pace pace;
  if (traits.cheap_registration) {
    pace.piece = uint64_t{256} << 10;
    pace.window = pace.reads = 4 * pace.piece;
    return pace;
  }
  const uint64_t speed = bits_per_second == 0 ? kUsualSpeed : bits_per_second;
  pace.piece = std::max(speed / 8 * kUnderWay / kSecond / kPieces, uint64_t{64} << 10);
  pace.window = pace.reads = kPieces * pace.piece;
  return pace;
}

}  // namespace

Nanos BlindSleep(Nanos silence) {
  return std::clamp(silence / 64, kShortestBlindSleep, kLongestBlindSleep);
}

Status Endpoint::Init(const Settings& settings, const fi_info& nic,
                      std::shared_ptr<const Library> library) {
  RDMA_RETURN_IF_ERROR(Domain::Open(std::move(library), &nic, &domain_));
  const Traits& traits = domain_->traits();
  const Nic read = NicOf(nic, kPciDevices);
  memory_ = std::make_unique<RegisteredMemory>(domain_.get(), traits.cheap_registration);
  frames_ =
      std::max(static_cast<uint32_t>(settings.verbs.ring / Domain::frame_bytes()), kMinFrames);
  pace_ = PaceOf(traits, read.speed);
  pace_.piece = std::min(pace_.piece, std::max<uint64_t>(traits.largest_transfer, 1));
  if (settings.verbs.chunk != 0) pace_.piece = std::min(pace_.piece, settings.verbs.chunk);
  peer_timeout_ = settings.peer_timeout;
  port_.text = nic.domain_attr->name == nullptr ? "an unnamed interface" : nic.domain_attr->name;
  if (nic.nic != nullptr) port_.name = port_.text;
  port_.text += " (" + domain_->Text(domain_->name()) + ")";
  port_.folder = read.folder;
  Frame frame;
  if (!domain_->NewFrame(&frame) || !domain_->NewFrame(&mark_destination_)) {
    return Status(Code::kResourceExhausted, "no memory for the messages of libfabric");
  }
  RDMA_RETURN_IF_ERROR(
      domain_->Register(frame.data, Domain::frame_bytes(), FI_REMOTE_READ, &mark_));
  RDMA_RETURN_IF_ERROR(sleeper_.Init());
  queue_events_ = host::FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!queue_events_.valid()) return StatusFromErrno(errno, "epoll_create1");
  RDMA_RETURN_IF_ERROR(sleeper_.Add(queue_events_.get()));
  for (const int descriptor : domain_->WaitDescriptors()) {
    epoll_event event = {};
    event.events = EPOLLIN;
    if (epoll_ctl(queue_events_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return StatusFromErrno(errno, "epoll_ctl");
    }
  }
  return OkStatus();
}

void Endpoint::Stop() {
  if (domain_ == nullptr) return;
  mark_.reset();  // some providers keep an endpoint open for its registrations
  domain_->Stop();
  // Channels give back what they hold.
  for (Operation& operation : operations_) operation.channel.reset();
}

std::vector<PortReport> Endpoint::Ports() const {
  if (port_.name.empty()) return {};
  PortReport port = port_;
  port.active = true;
  port.written_bytes = written_bytes_.load(std::memory_order_relaxed);
  port.read_bytes = read_bytes_.load(std::memory_order_relaxed);
  return {std::move(port)};
}

// --- Operations ---

Operation* Endpoint::NewOperation(Operation::Kind kind) {
  const bool message = kind == Operation::Kind::kReceive || kind == Operation::Kind::kMessage;
  std::lock_guard<std::mutex> lock(operations_mu_);
  auto& free = free_[message ? 1 : 0];
  if (free.empty()) {
    Frame frame;
    if (message && !domain_->NewFrame(&frame)) return nullptr;
    free.push_back(&operations_.emplace_back());
    free.back()->frame = frame;
  }
  Operation* operation = free.back();
  free.pop_back();
  operation->kind = kind;
  operation->cookie = 0;
  operation->sequence = 0;
  return operation;
}

void Endpoint::Return(Operation* operation) {
  const auto channel = std::move(operation->channel);  // may end here, without the lock
  std::lock_guard<std::mutex> lock(operations_mu_);
  free_[operation->frame.data == nullptr ? 0 : 1].push_back(operation);
}

// --- Sleeping ---

void Endpoint::WakeSoon() { sleeper_.WakeAfter(Now(), kWriteEndDelay); }

void Endpoint::OnStarted(Operation::Kind kind, uint64_t length) {
  const bool sent = kind == Operation::Kind::kWrite || kind == Operation::Kind::kMessage;
  auto& bytes = sent ? written_bytes_ : read_bytes_;
  bytes.fetch_add(length, std::memory_order_relaxed);
  if (domain_->traits().waits) return;
  // Its end, or the answer to it, wakes nobody.
  const Nanos now = Now();
  active_at_.store(now);
  if (asleep_.load()) sleeper_.WakeAfter(now, kShortestBlindSleep);
}

void Endpoint::OnAwake() {
  asleep_.store(false);
  const bool by_queue = sleeper_.woken() && sleeper_.Clear();
  // Threads that sleep while this one polls need not know of events.
  if (armed_ && !by_queue) sleeper_.Unwatch(queue_events_.get());
  armed_ = false;
}

Nanos Endpoint::OnSleep(Nanos now) {
  asleep_.store(true);
  return domain_->traits().waits ? peer_timeout_ / 8 : BlindSleep(now - active_at_.load());
}

void Endpoint::LetEventsWake() {
  armed_ = true;
  sleeper_.WatchOnce(queue_events_.get());
}

}  // namespace rdma_transport::fabric::libfabric
