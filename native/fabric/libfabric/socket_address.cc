#include "fabric/libfabric/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>

#include <cstring>

namespace rdma_transport::fabric::libfabric {

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

}  // namespace rdma_transport::fabric::libfabric
