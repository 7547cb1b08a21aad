#include "fabric/libfabric/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/fabric.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// A peer whose processes are stopped acknowledges what arrives, and then closes its window.
constexpr uint32_t kSilence = 1000;  // in milliseconds

std::string PeerOf(int socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  const uint32_t format = address.ss_family == AF_INET    ? uint32_t{FI_SOCKADDR_IN}
                          : address.ss_family == AF_INET6 ? uint32_t{FI_SOCKADDR_IN6}
                                                          : uint32_t{FI_FORMAT_UNSPEC};
  std::string host;
  uint16_t port = 0;
  ReadSocketAddress(format, {reinterpret_cast<const char*>(&address), length}, &host, &port);
  return host;
}

}  // namespace

bool ReadSocketAddress(uint32_t format, std::string_view bytes, std::string* host, uint16_t* port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (format == FI_SOCKADDR_IN && bytes.size() >= sizeof(sockaddr_in)) {
    sockaddr_in address;
    std::memcpy(&address, bytes.data(), sizeof(address));
    inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
    *port = ntohs(address.sin_port);
  } else if (format == FI_SOCKADDR_IN6 && bytes.size() >= sizeof(sockaddr_in6)) {
    sockaddr_in6 address;
    std::memcpy(&address, bytes.data(), sizeof(address));
    inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text));
    *port = ntohs(address.sin6_port);
  } else {
    return false;
  }
  *host = text;
  return true;
}

std::vector<int> WatchedBy(int epoll) {
  std::vector<int> watched;
  std::ifstream lines("/proc/self/fdinfo/" + std::to_string(epoll));  // see proc(5)
  std::string word;
  int descriptor = -1;
  while (lines >> word) {
    if (word == "tfd:" && lines >> descriptor) watched.push_back(descriptor);
  }
  return watched;
}

bool IsSocket(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

bool LimitSilence(int descriptor, const std::string& host, Nanos timeout) {
  // Stays the same socket, whatever the owner does.
  const host::FileDescriptor socket(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!socket.valid() || host.empty() || PeerOf(socket.get()) != host) return false;
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (info.tcpi_unacked == 0 || info.tcpi_last_ack_recv < kSilence) return false;
  const auto limit = static_cast<unsigned>(std::clamp<Nanos>(timeout / kMillisecond, 1, 1 << 30));
  return setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof(limit)) == 0;
}

}  // namespace rdma_transport::fabric::libfabric
