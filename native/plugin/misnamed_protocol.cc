// Answers servers of protocols that nobody has but that were meant to be "rdma". Without it,
// TensorFlow prints the whole ServerDef, and says nothing of what would be right.

#include <algorithm>
#include <cctype>
#include <iterator>
#include <memory>
#include <string>

#include "base/edit_distance.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

constexpr const char* kMeantNames[] = {"grpc", "verbs", "libfabric", "shm"};  // in any case

// Whether "rdma" was meant. `protocol` may be of any length.
bool MeansRdma(const std::string& protocol) {
  std::string name = protocol.substr(0, 16);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return std::find(std::begin(kMeantNames), std::end(kMeantNames), name) != std::end(kMeantNames) ||
         name.rfind("grpc+", 0) == 0 || name.rfind("rdma", 0) == 0 ||
         EditDistance(name, "rdma") <= 2;
}

class MisnamedServerFactory final : public tf::ServerFactory {
 public:
  // TensorFlow asks factories in no order, so what others accept is not for this one.
  bool AcceptsOptions(const tf::ServerDef& server_def) override {
    const std::string& protocol = server_def.protocol();
    return protocol != "grpc" && protocol != "rdma" && protocol != "grpc+verbs" &&
           protocol != "grpc+rdma" && MeansRdma(protocol);
  }
  absl::Status NewServer(const tf::ServerDef& server_def, const Options& options,
                         std::unique_ptr<tf::ServerInterface>* out) override {
    return absl::InvalidArgumentError(
        "there is no protocol '" + server_def.protocol().substr(0, 64) +
        "'; did you mean 'rdma'? It is the argument protocol of tf.distribute.Server, or "
        "\"rpc_layer\" in TF_CONFIG. RDMA_TRANSPORT_FABRIC chooses a fabric");
  }
};

[[maybe_unused]] const bool misnamed_registered = [] {
  tf::ServerFactory::Register("RDMA_MISNAMED_SERVER", new MisnamedServerFactory);
  return true;
}();

}  // namespace
}  // namespace rdma_transport
