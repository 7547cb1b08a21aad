#include "protocol/status_socket.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "protocol/report.h"

namespace rdma_transport {
namespace {

// A reader that does not read must not keep the others waiting for long.
constexpr timeval kPatience = {2, 0};

bool IsSameUser(int socket) {
  ucred credentials;
  socklen_t length = sizeof(credentials);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         (credentials.uid == geteuid() || credentials.uid == 0);
}

void SendAll(int socket, const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t n = send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

}  // namespace

Status StatusSocket::Start() {
  const std::string name =
      "rdma_transport.status." + std::to_string(geteuid()) + "." + std::to_string(getpid());
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener_ < 0) return StatusFromErrno(errno, "the status socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener_, 8) != 0) {
    const Status status = StatusFromErrno(errno, "the status socket");
    close(listener_);
    listener_ = -1;
    return status;
  }
  thread_ = std::thread([this] { Serve(); });
  pthread_setname_np(thread_.native_handle(), "rdma_status");
  return OkStatus();
}

void StatusSocket::Stop() {
  if (listener_ < 0) return;
  stop_.store(true);
  shutdown(listener_, SHUT_RDWR);  // ends the accept()
  thread_.join();
  close(listener_);
  listener_ = -1;
}

void StatusSocket::Serve() {
  while (!stop_.load()) {
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (stop_.load() || errno == EINVAL || errno == EBADF) return;
      usleep(100'000);  // no descriptor left, say; the reader tries again
      continue;
    }
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
    if (IsSameUser(connection)) SendAll(connection, StatsJson());
    close(connection);
  }
}

}  // namespace rdma_transport
