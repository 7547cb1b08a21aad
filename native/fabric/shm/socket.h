// The local socket of a channel: it carries descriptors of shared memory, proves that both ends run
// on one host under one user, and by its end tells that the peer is gone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::shm {

constexpr size_t kMaxMessage = 4096;
constexpr size_t kMaxDescriptors = 4;

struct Message {
  std::string bytes;
  std::vector<host::FileDescriptor> descriptors;
};

// Abstract addresses: they have no file, and end with the process.
Status Listen(const std::string& name, host::FileDescriptor* listener);
Status ConnectTo(const std::string& name, host::FileDescriptor* socket);
// NotFound: nobody waits.
Status Accept(int listener, host::FileDescriptor* socket);

// PermissionDenied unless the other end runs as this user.
Status CheckPeerUser(int socket);

// Never block. Unavailable: the socket is full, or the peer is gone.
Status SendMessage(int socket, std::string_view bytes, const std::vector<int>& descriptors);
// NotFound: nothing there now. Unavailable: the peer is gone.
Status ReceiveMessage(int socket, Message* message);

}  // namespace rdma_transport::fabric::shm
