#include "rpc/stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace rdma_transport::rpc {
namespace {

// Far more than an address needs, and little enough to hold for every connection.
constexpr size_t kMaxMessage = size_t{16} << 10;

}  // namespace

void Stream::Queue(const std::string& message) {
  const auto length = static_cast<uint32_t>(message.size());
  out_.append(reinterpret_cast<const char*>(&length), sizeof(length));
  out_.append(message);
}

Stream::Progress Stream::Send() {
  while (!out_.empty()) {
    const ssize_t sent = send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN ? Progress::kWaits : Progress::kBroken;
    out_.erase(0, static_cast<size_t>(sent));
  }
  return Progress::kDone;
}

Stream::Progress Stream::Receive() {
  while (true) {
    if (!length_known_ && in_.size() >= sizeof(uint32_t)) {
      uint32_t length = 0;
      std::memcpy(&length, in_.data(), sizeof(length));
      if (length > kMaxMessage) return Progress::kBroken;
      expected_ = length;
      length_known_ = true;
      in_.erase(0, sizeof(length));
    }
    if (length_known_ && in_.size() == expected_) return Progress::kDone;
    if (length_known_ && in_.size() > expected_) return Progress::kBroken;
    char bytes[4096];
    const ssize_t got = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN ? Progress::kWaits : Progress::kBroken;
    if (got == 0) return Progress::kBroken;
    in_.append(bytes, static_cast<size_t>(got));
  }
}

}  // namespace rdma_transport::rpc
