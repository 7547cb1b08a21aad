// Error handling by value. Code in native/ neither throws exceptions across a layer nor aborts.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace rdma_transport {

// The canonical codes. Numbers match those of gRPC and TensorFlow.
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

// The result of an operation: OK, or a code and a message for users. A value: copies are
// independent.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // Documents that the caller deliberately ignores an error.
  void IgnoreError() const {}

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }

// Returns a status whose code matches `error` and whose message is, for example, "`what`: No such
// file or directory (errno 2)".
Status StatusFromErrno(int error, std::string_view what);

// Returns from the current function if `expression` is not OK.
#define RDMA_RETURN_IF_ERROR(expression)                  \
  do {                                                    \
    ::rdma_transport::Status rdma_status_ = (expression); \
    if (!rdma_status_.ok()) return rdma_status_;          \
  } while (false)

}  // namespace rdma_transport
