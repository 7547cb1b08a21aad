// TensorFlow's interface for data transfer protocols of tf.data service. It is declared here
// because the wheel exports its functions but not its header.
//
// Invariant: names, layouts and the order of virtual functions match the loaded TensorFlow. They
// are those of 2.19 to 2.21. TensorFlow 2.18 has all but the last two functions of
// DataTransferServer. CMake refuses other versions, and the shim does not load the plugin into one
// that it was not built for. To port this to another version, compare it with that version's
// tensorflow/core/data/service/data_transfer.h and with the library:
//   - the mangled names of both Register() contain all types of the factories (nm -D);
//   - the relocations of the vtable of DataTransferClient name its functions in order;
//   - DataTransferServer has no vtable in the library: its order is that of the indirect calls in
//     WorkerGrpcDataServer::MaybeStartAlternativeDataTransferServer;
//   - Config is what DataServiceWorkerClient::EnsureInitialized builds on its stack.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/service_config.pb.h"

namespace rdma_transport {

// Whether a reader that gets a dataset's error asks again over gRPC, and so skips the element that
// failed. Later versions ask DataTransferServer::FallBackToGrpcAtGetElementTime().
constexpr bool kSkipsFailedElements =
    std::string_view(RDMA_TRANSPORT_TF_VERSION).substr(0, 5) == "2.18.";

}  // namespace rdma_transport

namespace tensorflow::data {

// A generated message of TensorFlow, whose header is not in the wheel either. Its only base is
// google::protobuf::Message, so references to the two are interchangeable.
class GetElementRequest;

// Exactly one of these holds: `components` is not empty, `end_of_sequence`, `skip`.
struct GetElementResult {
  std::vector<Tensor> components;
  int64_t element_index = 0;
  bool end_of_sequence = false;
  bool skip = false;
};
static_assert(sizeof(GetElementResult) == 40);

class DataTransferClient {
 public:
  struct Config {
    absl::string_view protocol;
    std::string address;
    const DeviceBase::AcceleratorDeviceInfo* accelerator_device_info;
    Allocator* allocator;
  };
  using ClientFactoryT = std::function<absl::Status(Config, std::unique_ptr<DataTransferClient>*)>;

  virtual ~DataTransferClient() = default;
  virtual absl::Status GetElement(const GetElementRequest& request, GetElementResult& result) = 0;
  virtual void TryCancel() = 0;
  virtual absl::StatusOr<std::string> GetCompatibilityInfo() const { return std::string(); }
  virtual absl::Status CheckCompatibility(const std::string& server_compatibility_info) const {
    return absl::OkStatus();
  }

  static void Register(std::string name, ClientFactoryT factory);
  static absl::Status Build(std::string name, Config config,
                            std::unique_ptr<DataTransferClient>* out);
};

class DataTransferServer {
 public:
  using GetElementT = std::function<absl::Status(const GetElementRequest*, GetElementResult*)>;
  using ServerFactoryT =
      std::function<absl::Status(GetElementT, std::shared_ptr<DataTransferServer>*)>;

  virtual ~DataTransferServer() = default;
  virtual absl::Status Start(const experimental::WorkerConfig& config) = 0;
  virtual int Port() const = 0;
  virtual absl::StatusOr<std::string> GetCompatibilityInfo() const { return std::string(); }
  virtual bool FallBackToGrpcAtClientCreationTime() const { return true; }
  virtual bool FallBackToGrpcAtGetElementTime() const { return true; }

  static void Register(std::string name, ServerFactoryT factory);
};

}  // namespace tensorflow::data
