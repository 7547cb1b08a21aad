// The worker side of data_transfer_protocol="rdma": answers requests for elements.

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "base/log.h"
#include "data_service/agreement.h"
#include "data_service/element.h"
#include "data_service/transfer.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "plugin/status_conversion.h"
#include "rpc/rpc_server.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;
namespace pb = google::protobuf;

constexpr char kPortPlaceholder[] = "%port%";

// A tensorflow::data::GetElementRequest, made by its name.
std::unique_ptr<pb::Message> NewRequest() {
  const pb::Descriptor* descriptor = pb::DescriptorPool::generated_pool()->FindMessageTypeByName(
      "tensorflow.data.GetElementRequest");
  if (descriptor == nullptr) return nullptr;
  const pb::Message* prototype = pb::MessageFactory::generated_factory()->GetPrototype(descriptor);
  return std::unique_ptr<pb::Message>(prototype == nullptr ? nullptr : prototype->New());
}

// The port to listen on. With 0, any free port is used and replaces "%dts_port%" in the worker's
// address.
int WantedPort(const tf::data::experimental::WorkerConfig& config) {
  if (config.data_transfer_port() != 0) return static_cast<int>(config.data_transfer_port());
  const std::string& address = config.data_transfer_address();
  const size_t colon = address.rfind(':');
  int port = 0;
  const bool given = colon != std::string::npos &&
                     absl::SimpleAtoi(absl::string_view(address).substr(colon + 1), &port);
  return given ? port : 0;
}

// The worker's own address. Empty if only TensorFlow knows the worker's port.
std::string GrpcAddress(const tf::data::experimental::WorkerConfig& config) {
  const bool known = config.port() != 0;
  if (!known && absl::StrContains(config.worker_address(), kPortPlaceholder)) return {};
  return absl::StrReplaceAll(config.worker_address(),
                             {{kPortPlaceholder, std::to_string(config.port())}});
}

rpc::Reply Failed(const Status& status) {
  rpc::Reply reply;
  reply.status = status;
  return reply;
}

class TransferServer final : public tf::data::DataTransferServer {
 public:
  explicit TransferServer(GetElementT get_element) : get_element_(std::move(get_element)) {}

  absl::Status Start(const tf::data::experimental::WorkerConfig& config) override {
    if (may_use_grpc_) grpc_address_ = GrpcAddress(config);
    rpc::Context context;
    prepared_ = PrepareTransfer("worker", &context);
    if (!prepared_.ok()) {
      // The protocol must be announced even so, or clients could not fall back.
      Log(LogLevel::kWarning, "data service worker: " + prepared_.message() +
                                  (may_use_grpc_ ? "; its clients use gRPC"
                                                 : "; RDMA_TRANSPORT_FALLBACK=forbid, so its "
                                                   "clients fail"));
      return absl::OkStatus();
    }
    server_ = std::make_unique<rpc::RpcServer>(
        context, [this](std::string_view request) { return Answer(request); });
    return ToTensorFlow(server_->Start(WantedPort(config)));
  }

  int Port() const override { return server_ == nullptr ? 0 : server_->port(); }
  absl::StatusOr<std::string> GetCompatibilityInfo() const override {
    return Announcement(prepared_, grpc_address_);
  }
  bool FallBackToGrpcAtClientCreationTime() const override { return may_use_grpc_; }
  // TensorFlow would also use gRPC after an error of the dataset, and so skip the failed element.
  // The client itself knows which errors are the transport's.
  bool FallBackToGrpcAtGetElementTime() const override { return false; }

 private:
  rpc::Reply Answer(std::string_view bytes) {
    const Status stopped(Code::kCancelled, "Worker is shutting down.");
    if (worker_stopped_.load()) return Failed(stopped);
    const std::unique_ptr<pb::Message> request = NewRequest();
    if (request == nullptr ||
        !request->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      return Failed(Status(Code::kInvalidArgument, "not a request for an element"));
    }
    tf::data::GetElementResult result;
    const absl::Status got =
        get_element_(reinterpret_cast<const tf::data::GetElementRequest*>(request.get()), &result);
    if (got.ok()) return EncodeElement(std::move(result));
    // What `get_element_` refers to ends just before this server does. It must not be called after
    // it has reported that.
    if (absl::IsCancelled(got) && absl::StartsWith(got.message(), "Worker is shutting down")) {
      worker_stopped_.store(true);
    }
    return Failed(FromTensorFlow(got));
  }

  const GetElementT get_element_;
  const bool may_use_grpc_ = MayUseGrpc();
  std::atomic<bool> worker_stopped_{false};
  Status prepared_;
  std::string grpc_address_;
  std::unique_ptr<rpc::RpcServer> server_;
};

[[maybe_unused]] const bool transfer_server_registered = [] {
  tf::data::DataTransferServer::Register(
      "rdma", [](tf::data::DataTransferServer::GetElementT get_element,
                 std::shared_ptr<tf::data::DataTransferServer>* server) {
        *server = std::make_shared<TransferServer>(std::move(get_element));
        return absl::OkStatus();
      });
  return true;
}();

}  // namespace
}  // namespace rdma_transport
