#include "protocol/status_socket.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/json.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

// A client that neither sends nor reads must not delay others for long.
constexpr timeval kTimeout = {2, 0};
constexpr size_t kLongestRequest = 64;

bool IsSameUser(int socket) {
  ucred credentials;
  socklen_t length = sizeof(credentials);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         (credentials.uid == geteuid() || credentials.uid == 0);
}

// Reads one line, without its end. Anything else is an unknown request.
std::string ReadRequest(int socket) {
  std::string request;
  char next = 0;
  while (request.size() < kLongestRequest && recv(socket, &next, 1, 0) == 1 && next != '\n') {
    request += next;
  }
  return request;
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
    pollfd waits[] = {{listener_, POLLIN, 0}, {tracer_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0) continue;
    if (waits[1].revents != 0) EndTrace();
    if (waits[0].revents == 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (stop_.load() || errno == EINVAL || errno == EBADF) break;
      usleep(100'000);  // for example, no file descriptor is free; the client retries
      continue;
    }
    Answer(connection);
  }
  if (tracer_ < 0) return;
  // The process is ending, so it does not wait for the client.
  Trace::Stop();
  close(tracer_);
  tracer_ = -1;
}

void StatusSocket::Answer(int connection) {
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kTimeout, sizeof(kTimeout));
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout));
  static constexpr char kTrace[] = "trace ";
  const std::string request = IsSameUser(connection) ? ReadRequest(connection) : "";
  if (request == "stats") {
    SendAll(connection, stats_());
  } else if (request.rfind(kTrace, 0) == 0) {
    const Status started =
        Trace::Start(std::strtoull(request.c_str() + sizeof(kTrace) - 1, nullptr, 10));
    if (started.ok()) {
      SendAll(connection, Json('{').Flag("tracing", true).End() + "\n");
      tracer_ = connection;
      return;
    }
    SendAll(connection, Json('{').Text("error", started.message()).End() + "\n");
  }
  close(connection);
}

void StatusSocket::EndTrace() {
  SendAll(tracer_, Trace::StopJson());
  close(tracer_);
  tracer_ = -1;
}

}  // namespace rdma_transport
