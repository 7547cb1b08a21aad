// Sessions on "rdma://host:port". The control plane is gRPC, so such a session is a gRPC session.

#include "tensorflow/core/common_runtime/session_factory.h"

#include <string>

#include "tensorflow/core/public/session.h"
#include "tensorflow/core/public/session_options.h"

namespace rdma_transport {
namespace {

constexpr const char* kSchemes[] = {"rdma://", "grpc+verbs://", "grpc+rdma://"};

// Returns the part after the scheme, or empty if the scheme is not one of ours.
std::string HostPort(const std::string& target) {
  for (const std::string scheme : kSchemes) {
    if (target.compare(0, scheme.size(), scheme) == 0) return target.substr(scheme.size());
  }
  return std::string();
}

class RdmaSessionFactory final : public tensorflow::SessionFactory {
 public:
  bool AcceptsOptions(const tensorflow::SessionOptions& options) override {
    return !HostPort(options.target).empty();
  }
  absl::Status NewSession(const tensorflow::SessionOptions& options,
                          tensorflow::Session** session) override {
    return tensorflow::NewSession(WithGrpcTarget(options), session);
  }
  absl::Status Reset(const tensorflow::SessionOptions& options,
                     const std::vector<std::string>& containers) override {
    return tensorflow::Reset(WithGrpcTarget(options), containers);
  }

 private:
  static tensorflow::SessionOptions WithGrpcTarget(const tensorflow::SessionOptions& options) {
    tensorflow::SessionOptions rewritten = options;
    rewritten.target = "grpc://" + HostPort(options.target);
    return rewritten;
  }
};

[[maybe_unused]] const bool session_registered = [] {
  tensorflow::SessionFactory::Register("RDMA_SESSION", new RdmaSessionFactory);
  return true;
}();

}  // namespace
}  // namespace rdma_transport
