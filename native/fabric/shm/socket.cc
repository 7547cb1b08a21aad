#include "fabric/shm/socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "fabric/host/fork_guard.h"

namespace rdma_transport::fabric::shm {
namespace {

constexpr int kSocketType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

// `name` has at most 100 characters; a leading null byte makes the address abstract.
socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  const size_t length = std::min<size_t>(name.size(), 100);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

}  // namespace

Status Listen(const std::string& name, host::FileDescriptor* listener) {
  host::FileDescriptor fd(socket(AF_UNIX, kSocketType, 0));
  if (!fd.valid()) return StatusFromErrno(errno, "local socket");
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return StatusFromErrno(errno, "binding a local socket");
  }
  if (listen(fd.get(), SOMAXCONN) != 0) return StatusFromErrno(errno, "listening locally");
  *listener = std::move(fd);
  return OkStatus();
}

Status ConnectTo(const std::string& name, host::FileDescriptor* socket_out) {
  host::FileDescriptor fd(socket(AF_UNIX, kSocketType, 0));
  if (!fd.valid()) return StatusFromErrno(errno, "local socket");
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return StatusFromErrno(errno, "connecting to the peer's local socket");
  }
  *socket_out = std::move(fd);
  return OkStatus();
}

Status Accept(int listener, host::FileDescriptor* socket_out) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
      return Status(Code::kNotFound, "no connection waits");
    }
    return StatusFromErrno(errno, "accepting a local connection");
  }
  *socket_out = host::FileDescriptor(fd);
  return OkStatus();
}

Status CheckPeerUser(int socket, pid_t* process) {
  ucred credentials;
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return StatusFromErrno(errno, "SO_PEERCRED");
  }
  if (credentials.uid != geteuid()) {
    return Status(Code::kPermissionDenied,
                  "the peer runs as user " + std::to_string(credentials.uid) + ", this task as " +
                      std::to_string(geteuid()) + "; shared memory is for one user");
  }
  *process = credentials.pid;
  return OkStatus();
}

Status SendMessage(int socket, std::string_view bytes, int descriptor) {
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
  }
  // MSG_DONTWAIT rather than O_NONBLOCK, which is part of the description that a peer could share
  // and change.
  ssize_t sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  // A pending error from earlier, reported once; see ReceiveMessage().
  if (sent < 0 && errno == ECONNRESET) sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return OkStatus();
  if (errno == EAGAIN || errno == ETOOMANYREFS) {
    return Status(Code::kResourceExhausted, "the peer does not read its local socket");
  }
  return StatusFromErrno(errno, "sending to the peer's local socket");
}

Status ReceiveMessage(int socket, Message* message) {
  char buffer[kMaxMessage];
  iovec part = {buffer, sizeof(buffer)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // The peer closed its end before it had read everything. The kernel reports that once, before
  // messages that the peer sent earlier, for example Bye.
  if (got < 0 && errno == ECONNRESET) {
    got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  }
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return Status(Code::kNotFound, "nothing there");
    return StatusFromErrno(errno, "receiving from the peer's local socket");
  }
  message->descriptors.clear();
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry) + i * sizeof(int), sizeof(fd));
      message->descriptors.emplace_back(fd);
    }
  }
  if (got == 0) return Status(Code::kUnavailable, "the peer closed its local socket");
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return Status(Code::kResourceExhausted,
                  "a descriptor from the peer was lost: raise the limit on open files (ulimit -n)");
  }
  message->bytes.assign(buffer, static_cast<size_t>(got));
  return OkStatus();
}

SocketEnd::SocketEnd(host::FileDescriptor fd)
    : fd_(std::move(fd)), generation_(host::ForkGeneration()) {
  host::GuardDescriptor(fd_.get());
}

SocketEnd::~SocketEnd() {
  if (Inherited()) {
    fd_.Release();
  } else {
    host::UnguardDescriptor(fd_.get());
  }
}

// If so, the descriptor was closed at the fork, and its number may now be another file.
bool SocketEnd::Inherited() const { return generation_ != host::ForkGeneration(); }

void SocketEnd::EndStream() const {
  if (!Inherited()) shutdown(fd_.get(), SHUT_WR);
}

}  // namespace rdma_transport::fabric::shm
