// Errors as values. Nothing in native/ throws across a layer, and nothing aborts.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace rdma_transport {

// The canonical codes, with the numbers that gRPC and TensorFlow give them.
enum class Code {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // For the places that can do nothing better with an error than what they do without one.
  void IgnoreError() const {}

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }

// "`what`: No such file or directory (errno 2)" with a code that fits `error`.
Status StatusFromErrno(int error, std::string_view what);

#define RDMA_RETURN_IF_ERROR(expression)                  \
  do {                                                    \
    ::rdma_transport::Status rdma_status_ = (expression); \
    if (!rdma_status_.ok()) return rdma_status_;          \
  } while (false)

}  // namespace rdma_transport
