#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace rdma_transport {
namespace {

Code CodeFromErrno(int error) {
  switch (error) {
    case EINVAL:
      return Code::kInvalidArgument;
    case ENOENT:
      return Code::kNotFound;
    case EPERM:
    case EACCES:
      return Code::kPermissionDenied;
    case ENOMEM:
    case ENOSPC:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
      return Code::kResourceExhausted;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EAGAIN:
      return Code::kUnavailable;
    case ENOSYS:
    case EOPNOTSUPP:
      return Code::kUnimplemented;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Status StatusFromErrno(int error, std::string_view what) {
  std::string message(what);
  message += ": ";
  message += std::strerror(error);
  message += " (errno " + std::to_string(error) + ")";
  return Status(CodeFromErrno(error), std::move(message));
}

}  // namespace rdma_transport
