// The local socket of a channel. It carries descriptors of shared memory, proves that both ends run
// on one host under one user, wakes the peer, and its end tells that the peer uses nothing here any
// more.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::shm {

constexpr size_t kMaxMessage = 4096;

struct Message {
  std::string bytes;
  std::vector<host::FileDescriptor> descriptors;
};

// Abstract addresses: they have no file, and end with the process.
Status Listen(const std::string& name, host::FileDescriptor* listener);
Status ConnectTo(const std::string& name, host::FileDescriptor* socket);
// NotFound: nobody waits.
Status Accept(int listener, host::FileDescriptor* socket);

// PermissionDenied unless the other end runs as this user. `process`: 0 if it is in a PID namespace
// that this process does not see.
Status CheckPeerUser(int socket, pid_t* process);

// Sends at most one descriptor; -1: none. Never blocks, whatever the peer does to its end.
// ResourceExhausted: no room now. Unavailable: the peer is gone.
Status SendMessage(int socket, std::string_view bytes, int descriptor = -1);
// NotFound: nothing there now. Unavailable: the peer is gone.
Status ReceiveMessage(int socket, Message* message);

// Owns this process's end of a connection, which children of a fork do not inherit. Thread-safe.
class SocketEnd {
 public:
  explicit SocketEnd(host::FileDescriptor fd);
  ~SocketEnd();
  SocketEnd(const SocketEnd&) = delete;
  SocketEnd& operator=(const SocketEnd&) = delete;

  int get() const { return fd_.get(); }
  // Ends this side's stream: the peer reads what was sent, then the end.
  void EndStream() const;

 private:
  bool Inherited() const;

  host::FileDescriptor fd_;
  const int generation_;  // of forks
};

// While one lives, this process may read or write memory of the peer. With the last reference the
// stream to the peer ends, as it does when the process dies.
class Presence {
 public:
  explicit Presence(std::shared_ptr<const SocketEnd> socket) : socket_(std::move(socket)) {}
  ~Presence() { socket_->EndStream(); }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  const std::shared_ptr<const SocketEnd> socket_;
};

}  // namespace rdma_transport::fabric::shm
