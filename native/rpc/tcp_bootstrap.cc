// The client side of a Listener.
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "rpc/listener.h"
#include "rpc/stream.h"

namespace rdma_transport::rpc {
namespace {

using fabric::host::FileDescriptor;

constexpr Nanos kConnectSlice = 20 * kMillisecond;  // limits the delay of a cancellation

Status Late(const std::string& address) {
  return Status(Code::kUnavailable, "no answer from " + address + " in time");
}

Status Split(const std::string& address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return Status(Code::kInvalidArgument, "'" + address + "' is not host:port");
  }
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->size() > 2 && host->front() == '[' && host->back() == ']') {
    *host = host->substr(1, host->size() - 2);
  }
  return OkStatus();
}

// Waits until the socket is ready for `events`.
Status Await(int fd, short events, const std::string& address, Nanos deadline,
             const std::atomic<bool>* cancelled) {
  while (!cancelled->load()) {
    const Nanos left = deadline - Now();
    if (left <= 0) return Late(address);
    pollfd descriptor = {fd, events, 0};
    const auto slice = static_cast<int>(std::min(left, kConnectSlice) / kMillisecond + 1);
    if (poll(&descriptor, 1, slice) > 0) return OkStatus();
  }
  return Status(Code::kCancelled, "the call was cancelled");
}

Status ConnectTo(const addrinfo& place, const std::string& address, Nanos deadline,
                 const std::atomic<bool>* cancelled, FileDescriptor* connected) {
  FileDescriptor made(
      socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, place.ai_protocol));
  if (!made.valid()) return StatusFromErrno(errno, "a socket");
  if (connect(made.get(), place.ai_addr, place.ai_addrlen) != 0) {
    int error = errno;
    if (error == EINPROGRESS) {
      RDMA_RETURN_IF_ERROR(Await(made.get(), POLLOUT, address, deadline, cancelled));
      socklen_t length = sizeof(error);
      getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error != 0) {
      return Status(Code::kUnavailable, StatusFromErrno(error, address).message());
    }
  }
  *connected = std::move(made);
  return OkStatus();
}

}  // namespace

Status TcpBootstrap(const std::string& address, const std::string& request, Nanos deadline,
                    const std::atomic<bool>* cancelled, std::string* reply) {
  std::string host;
  std::string port;
  RDMA_RETURN_IF_ERROR(Split(address, &host, &port));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int resolved = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (resolved != 0) {
    return Status(Code::kUnavailable, address + ": " + gai_strerror(resolved));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> places(found, &freeaddrinfo);
  FileDescriptor socket;
  Status status = Late(address);
  for (const addrinfo* place = found; place != nullptr && !socket.valid(); place = place->ai_next) {
    status = ConnectTo(*place, address, deadline, cancelled, &socket);
  }
  RDMA_RETURN_IF_ERROR(status);
  Stream stream(std::move(socket), deadline);
  stream.Queue(request);
  while (true) {
    const Stream::Progress progress = stream.sending() ? stream.Send() : stream.Receive();
    if (progress == Stream::Progress::kBroken) {
      return Status(Code::kUnavailable, address + " closed the connection");
    }
    if (progress == Stream::Progress::kWaits) {
      const short events = stream.sending() ? POLLOUT : POLLIN;
      RDMA_RETURN_IF_ERROR(Await(stream.fd(), events, address, deadline, cancelled));
    } else if (!stream.received().empty()) {
      *reply = stream.received();
      return OkStatus();
    }
  }
}

}  // namespace rdma_transport::rpc
