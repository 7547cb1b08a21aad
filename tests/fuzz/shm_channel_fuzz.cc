// A channel on shared memory before a hostile peer of the same user: messages on the local socket
// with any bytes and odd descriptors, and a ring of notifications that the peer writes as it likes.
//
// An honest channel connects too, through the fuzzer, which passes its messages on as they are, or
// changed. So the fuzzer needs no knowledge of how two channels greet each other.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "fabric/host/memory_file.h"
#include "fabric/shm/address.h"
#include "fabric/shm/device.h"
#include "fabric/shm/messages.h"
#include "fabric/shm/ring.h"
#include "fabric/shm/socket.h"
#include "input.h"

namespace rdma_transport::fabric::shm {
namespace {

using fuzz::Input;
using fuzz::Require;
using host::FileDescriptor;

constexpr size_t kMaxOperations = 48;
constexpr size_t kMaxDescriptors = 4;

// --- Descriptors that a peer may send ---

int MemoryFile(size_t length, int seals) {
  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  Require(fd >= 0 && ftruncate(fd, static_cast<off_t>(length)) == 0);
  Require(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

std::vector<int> MakeOddDescriptors() {
  constexpr int kSized = F_SEAL_SHRINK | F_SEAL_GROW;
  int pipe_ends[2];
  int socket_ends[2];
  Require(pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) == 0);
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, socket_ends) == 0);
  return {MemoryFile(kRingFileLength, kSized),
          eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
          MemoryFile(Window::kGranule, kSized),
          MemoryFile(Window::kGranule, kSized | F_SEAL_WRITE),
          MemoryFile(Window::kGranule, 0),
          MemoryFile(kRingFileLength, 0),
          MemoryFile(4096, kSized),
          MemoryFile(0, kSized),
          pipe_ends[0],
          pipe_ends[1],
          socket_ends[0],
          open("/dev/null", O_RDWR | O_CLOEXEC),
          open("/", O_PATH | O_CLOEXEC),
          epoll_create1(EPOLL_CLOEXEC)};
}

int OddDescriptor(Input* input) {
  static const auto* all = new std::vector<int>(MakeOddDescriptors());
  return (*all)[input->Below(all->size())];
}

// As SendMessage(), with any number of descriptors.
void SendWith(int socket, std::string_view bytes, const std::vector<int>& descriptors) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    const size_t size = descriptors.size() * sizeof(int);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(size);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(rights), descriptors.data(), size);
  }
  // The other side may be gone.
  static_cast<void>(sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT));
}

// --- The side that is tested, and the honest one ---

class Recorder final : public ChannelHandler {
 public:
  void OnConnected() override { Require(!std::exchange(connected_, true) && !closed); }
  void OnNotify(const char* data, size_t length) override {
    Require(connected_ && !closed);
    volatile char receive_arena = 0;
    for (size_t i = 0; i < length; ++i) receive_arena = receive_arena ^ data[i];
  }
  void OnTransfer(uint64_t, const Status&) override { Require(!closed); }
  void OnClosed(const Status&) override { Require(!std::exchange(closed, true)); }

  bool closed = false;

 private:
  bool connected_ = false;
};

struct Side {
  Side() {
    Require(ShmDevice::Create(Settings(), &device).ok());
    Require(device->Open(handler, &channel).ok());
    Require(ChannelAddress::Decode(channel->Address(), &address).ok());
  }
  void Poll() {
    // Also what lies in sockets, which a busy device looks at now and then.
    static_cast<void>(device->ArmNotification());
    device->Sleep(/*deadline=*/1);
    device->Poll();
  }

  std::unique_ptr<Device> device;
  std::shared_ptr<Recorder> handler = std::make_shared<Recorder>();
  std::shared_ptr<Channel> channel;
  ChannelAddress address;
};

class World {
 public:
  explicit World(Input* input) : input_(input) {
    const std::string name = "rdma_transport_fuzz." + std::to_string(getpid());
    FileDescriptor listener;
    Require(Listen(name, &listener).ok());
    const auto through_fuzzer = [&](const Side& side) {
      ChannelAddress address = side.address;
      address.socket_name = name;
      return address.Encode();
    };
    // Whichever side is active finds the fuzzer where it expects the other one.
    Side& active = input->Flag() ? tested_ : honest_;
    Side& passive = &active == &tested_ ? honest_ : tested_;
    Require(passive.channel->Connect(active.channel->Address(), Role::kPassive).ok());
    Require(active.channel->Connect(through_fuzzer(passive), Role::kActive).ok());
    FileDescriptor to_active;
    FileDescriptor to_passive;
    Require(Accept(listener.get(), &to_active).ok());
    Require(ConnectTo(passive.address.socket_name, &to_passive).ok());
    to_tested_ = std::move(&active == &tested_ ? to_active : to_passive);
    to_honest_ = std::move(&active == &tested_ ? to_passive : to_active);
  }

  void Run() {
    if (input_->Below(8) != 0) Greet();
    for (size_t i = 0; i < kMaxOperations && !input_->empty(); ++i) Operate();
    tested_.Poll();
    if (input_->Flag()) {
      to_tested_.Reset();
    } else {
      tested_.channel->Close(Status(Code::kCancelled, "over"));
    }
    for (int i = 0; i < 100 && !tested_.handler->closed; ++i) tested_.Poll();
    // A passive side that nobody greeted waits for its owner.
    tested_.channel->Close(Status(Code::kCancelled, "over"));
    for (int i = 0; i < 100 && !tested_.handler->closed; ++i) tested_.Poll();
    Require(tested_.handler->closed);
  }

 private:
  // Passes on what both sides say, until both are connected or nothing is said any more.
  void Greet() {
    for (int i = 0; i < 3; ++i) {
      PassOn(to_honest_, to_tested_);
      tested_.Poll();
      PassOn(to_tested_, to_honest_);
      honest_.Poll();
    }
  }

  void PassOn(const FileDescriptor& from, const FileDescriptor& to) {
    Message message;
    if (!ReceiveMessage(from.get(), &message).ok()) return;
    std::vector<int> descriptors;
    for (const FileDescriptor& fd : message.descriptors) descriptors.push_back(fd.get());
    if (to.get() == to_tested_.get()) {
      Disturb(&message.bytes, &descriptors);
    } else if (!ring_.header_known && descriptors.size() == 1) {
      ring_.header_known = ring_.mapping.Map(descriptors[0]).ok();
    }
    SendWith(to.get(), message.bytes, descriptors);
  }

  void Disturb(std::string* bytes, std::vector<int>* descriptors) {
    const size_t kind = input_->Below(8);
    if (kind == 1 && !bytes->empty())
      (*bytes)[input_->Below(bytes->size())] ^= input_->Take<char>();
    if (kind == 2) bytes->resize(input_->Below(64));
    if (kind == 3 && !descriptors->empty()) descriptors->pop_back();
    if (kind == 4 && descriptors->size() < kMaxDescriptors) {
      descriptors->push_back(OddDescriptor(input_));
    }
    if (kind >= 5 && !descriptors->empty()) {
      (*descriptors)[input_->Below(descriptors->size())] = OddDescriptor(input_);
    }
  }

  void Operate() {
    switch (input_->Below(10)) {
      case 0:
        return PassOn(to_honest_, to_tested_);
      case 1:
        return SendOdd();
      case 2:
        return SendRegion();
      case 3:
        return WriteRing();
      case 4:
        return SpoilHeader();
      case 5:
        return Notify();
      case 6:
        return Transfer();
      case 7: {
        const RemoteSpan span = Span();
        Use(tested_.channel->Map(span), span.length);
        return;
      }
      case 8:
        honest_.Poll();
        return;
      default:
        return tested_.Poll();
    }
  }

  // A region that is or is not there, writable or not, that is announced again or taken back.
  void SendRegion() {
    if (input_->Below(4) == 0) {
      RegionKey withdrawn = {};
      withdrawn.type = MessageType::kWithdraw;
      withdrawn.key = input_->Below(4);
      SendWith(to_tested_.get(), AsBytes(withdrawn), {});
      return;
    }
    RegionMessage region = {};
    region.type = MessageType::kRegion;
    region.writable = input_->Below(2);
    region.key = input_->Below(4);
    region.length = input_->Flag() ? Window::kGranule : input_->Number();
    SendWith(to_tested_.get(), AsBytes(region), {OddDescriptor(input_)});
  }

  void SendOdd() {
    std::vector<int> descriptors(input_->Below(kMaxDescriptors + 1));
    for (int& fd : descriptors) fd = OddDescriptor(input_);
    std::string bytes = input_->Bytes(input_->Below(64));
    bytes.resize(input_->Flag() ? sizeof(Bye) : bytes.size());
    if (bytes.empty()) return;  // would mean the end
    SendWith(to_tested_.get(), bytes, descriptors);
  }

  // A record, or what looks like one.
  void WriteRing() {
    if (!ring_.header_known) return;
    const std::string bytes = input_->Bytes(input_->Below(64));
    const uint64_t stated = input_->Below(4) == 0 ? input_->Number() : bytes.size();
    char* at = ring_.mapping.data() + ring_.tail % kRingCapacity;
    std::memcpy(at, &stated, sizeof(stated));
    std::memcpy(at + sizeof(stated), bytes.data(), bytes.size());
    ring_.tail += (sizeof(stated) + bytes.size() + 7) / 8 * 8;
    ring_.mapping.header()->tail.store(ring_.tail);
  }

  void SpoilHeader() {
    if (!ring_.header_known) return;
    const uint64_t value = input_->Number();
    if (input_->Flag()) ring_.mapping.header()->tail.store(value);
    if (input_->Flag()) ring_.mapping.header()->head.store(value);
    if (input_->Flag()) ring_.mapping.header()->producer_waits.store(1);
    if (input_->Flag()) ring_.mapping.header()->asleep.store(1);
    if (input_->Flag()) ring_.mapping.header()->taken.store(value);
  }

  void Notify() {
    const std::string bytes(input_->Take<uint16_t>() * size_t{4}, 'n');
    const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    const Urgency urgency = input_->Flag() ? Urgency::kWake : Urgency::kLazy;
    tested_.channel->Notify(&part, 1, urgency).IgnoreError();
    tested_.channel->backlog();
  }

  RemoteSpan Span() {
    RemoteSpan span = {input_->Below(4), input_->Number() * 4096, input_->Number()};
    span.length = std::min<uint64_t>(span.length, sizeof(local_));
    return span;
  }

  void Transfer() {
    const RemoteSpan span = Span();
    if (input_->Flag()) {
      tested_.channel->Write(local_, span, 1).IgnoreError();
    } else {
      tested_.channel->Read(span, local_, 2).IgnoreError();
    }
  }

  void Use(const MappedSpan& mapped, uint64_t length) {
    if (mapped.data != nullptr) std::memcpy(local_, mapped.data, length);
  }

  Input* const input_;
  Side tested_;
  Side honest_;
  FileDescriptor to_tested_;
  FileDescriptor to_honest_;
  // That the tested side reads.
  struct {
    RingMapping mapping;
    bool header_known = false;
    uint64_t tail = 0;
  } ring_;
  char local_[4096] = {};
};

}  // namespace
}  // namespace rdma_transport::fabric::shm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rdma_transport::SetLogLevel(rdma_transport::LogLevel::kOff);
  rdma_transport::fuzz::Input input(data, size);
  rdma_transport::fabric::shm::World(&input).Run();
  return 0;
}
