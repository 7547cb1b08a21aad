#include "rpc/listener.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "rpc/stream.h"

namespace rdma_transport::rpc {
namespace {

using fabric::host::FileDescriptor;

constexpr Nanos kHandshakeTimeout = 5 * kSecond;
constexpr size_t kMaxHandshakes = 64;
constexpr int kAcceptsAtOnce = 16;
constexpr Nanos kAcceptPause = 100 * kMillisecond;  // while no file descriptor is free
constexpr int kMaintenanceMs = 500;

// Listens on IPv6 and IPv4, or on IPv4 alone if there is no IPv6.
Status Listen(int port, FileDescriptor* listener, int* bound) {
  for (const int family : {AF_INET6, AF_INET}) {
    FileDescriptor made(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made.valid()) continue;
    const int on = 1;
    const int off = 0;
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in6 six = {};
    sockaddr_in four = {};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<uint16_t>(port));
    four.sin_family = AF_INET;
    four.sin_port = six.sin6_port;
    if (family == AF_INET6) {
      setsockopt(made.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    const auto* address = family == AF_INET6 ? reinterpret_cast<const sockaddr*>(&six)
                                             : reinterpret_cast<const sockaddr*>(&four);
    const socklen_t length = family == AF_INET6 ? sizeof(six) : sizeof(four);
    if (bind(made.get(), address, length) != 0) {
      if (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT) continue;
      return StatusFromErrno(errno, "port " + std::to_string(port));
    }
    sockaddr_in6 got = {};
    socklen_t got_length = sizeof(got);
    if (listen(made.get(), 64) != 0 ||
        getsockname(made.get(), reinterpret_cast<sockaddr*>(&got), &got_length) != 0) {
      return StatusFromErrno(errno, "port " + std::to_string(port));
    }
    *bound = ntohs(got.sin6_port);  // same offset in an IPv4 address
    *listener = std::move(made);
    return OkStatus();
  }
  return StatusFromErrno(errno, "a listening socket");
}

// Queues the reply as soon as the request is complete. Returns false if the stream can be closed.
bool Advance(Stream* stream, const Listener::AcceptHandler& handler) {
  if (!stream->sending()) {
    const Stream::Progress received = stream->Receive();
    if (received != Stream::Progress::kDone) return received == Stream::Progress::kWaits;
    const std::string reply = handler(&stream->received());
    stream->Queue(reply);
  }
  return stream->Send() == Stream::Progress::kWaits;
}

}  // namespace

Status Listener::Open(int port, AcceptHandler handler) {
  FileDescriptor listener;
  RDMA_RETURN_IF_ERROR(Listen(port, &listener, &port_));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return StatusFromErrno(errno, "an eventfd");
  listener_ = std::move(listener);
  wake_ = std::move(wake);
  handler_ = std::move(handler);
  thread_ = std::thread([this] { Serve(); });
  pthread_setname_np(thread_.native_handle(), "rdma_listener");
  return OkStatus();
}

void Listener::Close() {
  if (!thread_.joinable()) return;
  stop_.store(true);
  eventfd_write(wake_.get(), 1);
  thread_.join();
  listener_.Reset();
}

// Clients send their request at once, so an idle connection makes room for newer ones.
void Listener::Accept(Nanos now, std::vector<Stream>* streams) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      // The connection stays in the kernel's queue while the others are served.
      accept_after_ = now + kAcceptPause;
      if (!std::exchange(accept_failed_logged_, true)) {
        Log(LogLevel::kWarning, "port " + std::to_string(port_) + " takes no connections now: " +
                                    strerror(errno) + " (limit on open files: ulimit -n)");
      }
      return;
    }
    if (streams->size() >= kMaxHandshakes) streams->erase(streams->begin());
    streams->emplace_back(std::move(socket), now + kHandshakeTimeout);
  }
}

void Listener::Serve() {
  std::vector<Stream> streams;
  while (!stop_.load()) {
    std::vector<pollfd> descriptors = {{wake_.get(), POLLIN, 0}};
    for (const Stream& stream : streams) {
      descriptors.push_back(
          {stream.fd(), static_cast<short>(stream.sending() ? POLLOUT : POLLIN), 0});
    }
    const bool paused = Now() < accept_after_;
    if (!paused) descriptors.push_back({listener_.get(), POLLIN, 0});
    poll(descriptors.data(), descriptors.size(),
         paused ? kAcceptPause / kMillisecond : kMaintenanceMs);
    const Nanos now = Now();
    std::vector<Stream> left;
    for (size_t i = 0; i < streams.size(); ++i) {
      const bool alive = descriptors[i + 1].revents == 0 || Advance(&streams[i], handler_);
      if (alive && now < streams[i].deadline()) left.push_back(std::move(streams[i]));
    }
    streams = std::move(left);
    if (now >= accept_after_) Accept(now, &streams);
    handler_(nullptr);
  }
}

}  // namespace rdma_transport::rpc
