// The local socket of a channel. It passes descriptors of shared memory, proves that both ends run
// on one host as one user, and wakes the peer. The end of its stream means that the peer no longer
// uses memory of this process.
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

// Listen() and ConnectTo() use abstract addresses, which have no file and vanish with the process.
Status Listen(const std::string& name, host::FileDescriptor* listener);
Status ConnectTo(const std::string& name, host::FileDescriptor* socket);
// Returns NotFound if there is no pending connection.
Status Accept(int listener, host::FileDescriptor* socket);

// Returns PermissionDenied unless the peer runs as the same user. Sets `process` to 0 if the peer's
// PID namespace is not visible here.
Status CheckPeerUser(int socket, pid_t* process);

// Sends a message with at most one descriptor (-1: none). Never blocks. Returns ResourceExhausted
// if there is no room now, Unavailable if the peer is gone.
Status SendMessage(int socket, std::string_view bytes, int descriptor = -1);
// Returns NotFound if there is no message now, Unavailable if the peer is gone.
Status ReceiveMessage(int socket, Message* message);

// Owns this process's end of a connection. Children of a fork do not inherit it. Thread-safe.
class SocketEnd {
 public:
  explicit SocketEnd(host::FileDescriptor fd);
  ~SocketEnd();
  SocketEnd(const SocketEnd&) = delete;
  SocketEnd& operator=(const SocketEnd&) = delete;

  int get() const { return fd_.get(); }
  // Ends this side's stream. The peer first reads what was sent before.
  void EndStream() const;

 private:
  bool Inherited() const;

  host::FileDescriptor fd_;
  const int generation_;  // of forks, see fork_guard.h
};

// While an instance exists, this process may access memory of the peer. Destruction ends the stream
// to the peer, as the death of the process does.
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
