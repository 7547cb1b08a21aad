// The client side of data_transfer_protocol="rdma": requests elements from a worker.

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "data_service/agreement.h"
#include "data_service/element.h"
#include "data_service/transfer.h"
#include "google/protobuf/message.h"
#include "plugin/status_conversion.h"
#include "protocol/counters.h"
#include "rpc/rpc_client.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// TensorFlow holds locks while it creates a client.
constexpr Nanos kConnectTimeout = 2 * kSecond;

// Thread-safe. TensorFlow retries Unavailable and passes any other error to the reader. If the
// fabric does not reach a worker for long, elements are fetched over gRPC from then on, if allowed.
class TransferClient final : public tf::data::DataTransferClient {
 public:
  TransferClient(const rpc::Context& context, std::string address, tf::Allocator* allocator)
      : context_(context), address_(std::move(address)), allocator_(allocator) {}

  ~TransferClient() override {
    if (client_ != nullptr) client_->Leave();
  }

  // Connects now, because TensorFlow can still choose gRPC here without loss.
  absl::Status CheckCompatibility(const std::string& announcement) const override {
    std::string grpc_address;
    Status status = CheckAnnouncement(announcement, &grpc_address);
    {
      std::lock_guard<std::mutex> lock(mu_);
      grpc_address_ = grpc_address;
    }
    std::shared_ptr<rpc::RpcClient> client;
    if (status.ok()) status = Connected(&client);
    if (!status.ok()) ReportFallback(status);
    return ToTensorFlow(status);
  }

  absl::Status GetElement(const tf::data::GetElementRequest& request,
                          tf::data::GetElementResult& result) override {
    if (tf::data::DataTransferClient* grpc = Grpc()) return grpc->GetElement(request, result);
    std::shared_ptr<rpc::RpcClient> client;
    const Status connected = Connected(&client);
    if (!connected.ok()) return Unreached(connected, request, result);
    const auto& message = reinterpret_cast<const google::protobuf::Message&>(request);
    rpc::Response response = client->Call(message.SerializeAsString());
    if (!response.replied && !IsTransient(response.status)) {
      return Unreached(response.status, request, result);
    }
    Reached();
    if (!response.status.ok()) return ToTensorFlow(response.status);
    return DecodeElement(std::move(response), &result);
  }

  void TryCancel() override {
    cancelled_.store(true);
    std::lock_guard<std::mutex> lock(mu_);
    if (client_ != nullptr) client_->Cancel();
    if (grpc_ != nullptr) grpc_->TryCancel();
  }

 private:
  // TensorFlow retries or ends by itself.
  static bool IsTransient(const Status& status) {
    return status.code() == Code::kUnavailable || status.code() == Code::kCancelled;
  }

  tf::data::DataTransferClient* Grpc() const {
    std::lock_guard<std::mutex> lock(mu_);
    return grpc_.get();
  }

  Status Connected(std::shared_ptr<rpc::RpcClient>* client) const {
    std::lock_guard<std::mutex> connecting(connect_mu_);
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (cancelled_.load()) return Status(Code::kCancelled, "the client was cancelled");
      if (client_ != nullptr && !client_->lost()) {
        *client = client_;
        return OkStatus();
      }
    }
    const Nanos timeout = std::min(context_.settings->connect_timeout, kConnectTimeout);
    RDMA_RETURN_IF_ERROR(
        rpc::RpcClient::Connect(context_, address_, Now() + timeout, &cancelled_, client));
    std::lock_guard<std::mutex> lock(mu_);
    client_ = *client;
    unreachable_since_ = 0;
    if (cancelled_.load()) client_->Cancel();
    return OkStatus();
  }

  void Reached() {
    std::lock_guard<std::mutex> lock(mu_);
    unreachable_since_ = 0;
  }

  // A worker that restarted elsewhere is not at this address, but gRPC may reach it.
  absl::Status Unreached(const Status& status, const tf::data::GetElementRequest& request,
                         tf::data::GetElementResult& result) {
    if (status.code() == Code::kCancelled) return ToTensorFlow(status);
    {
      std::lock_guard<std::mutex> lock(mu_);
      const Nanos now = Now();
      if (unreachable_since_ == 0) unreachable_since_ = now;
      if (now - unreachable_since_ < context_.settings->connect_timeout) {
        return ToTensorFlow(Status(Code::kUnavailable, status.message()));
      }
      if (grpc_ == nullptr) {
        const absl::Status made = UseGrpcLocked(status);
        if (!made.ok()) return made;
      }
    }
    return Grpc()->GetElement(request, result);
  }

  absl::Status UseGrpcLocked(const Status& status) {
    ReportFallback(status);
    if (grpc_address_.empty()) {
      return ToTensorFlow(Status(Code::kFailedPrecondition,
                                 status.message() +
                                     "; gRPC cannot serve instead, because the worker forbids it "
                                     "(RDMA_TRANSPORT_FALLBACK) or has no port of its own in its "
                                     "WorkerConfig"));
    }
    const absl::Status made = tf::data::DataTransferClient::Build(
        "grpc", {"grpc", grpc_address_, nullptr, allocator_}, &grpc_);
    if (made.ok() && cancelled_.load()) grpc_->TryCancel();
    return made;
  }

  void ReportFallback(const Status& status) const {
    GlobalCounters().fallback_reasons.Add("data service: " + status.message());
    Log(LogLevel::kWarning,
        "data service worker at " + address_ + " falls back to gRPC: " + status.message());
  }

  const rpc::Context context_;
  const std::string address_;
  tf::Allocator* const allocator_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex connect_mu_;  // before mu_
  mutable std::mutex mu_;
  mutable std::shared_ptr<rpc::RpcClient> client_;
  mutable Nanos unreachable_since_ = 0;
  mutable std::string grpc_address_;
  std::unique_ptr<tf::data::DataTransferClient> grpc_;  // never reset once created
};

[[maybe_unused]] const bool transfer_client_registered = [] {
  tf::data::DataTransferClient::Register(
      "rdma", [](const tf::data::DataTransferClient::Config& config,
                 std::unique_ptr<tf::data::DataTransferClient>* client) {
        rpc::Context context;
        const Status prepared = PrepareTransfer("reader", &context);
        if (!prepared.ok()) {
          GlobalCounters().fallback_reasons.Add("data service: " + prepared.message());
          return ToTensorFlow(prepared);
        }
        *client = std::make_unique<TransferClient>(context, config.address, config.allocator);
        return absl::OkStatus();
      });
  return true;
}();

}  // namespace
}  // namespace rdma_transport
