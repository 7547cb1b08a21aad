#include "data_service/agreement.h"

#include <unistd.h>

#include <vector>

#include "base/settings.h"
#include "data_service/transfer.h"
#include "protocol/process.h"

namespace rdma_transport {
namespace {

constexpr char kReady[] = "rdma_transport RPC, gRPC at ";
constexpr char kRefusal[] = "rdma_transport refuses: ";

// A name that both timelines of a transfer share, and no other process has.
std::string NameOf(const char* role) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return std::string("tf.data ") + role + " " + host + ":" + std::to_string(getpid());
}

}  // namespace

Status PrepareTransfer(const char* role, rpc::Context* context) {
  if (kSkipsFailedElements) {
    return Status(
        Code::kFailedPrecondition,
        "TensorFlow 2.18 skips elements that failed; tf.data service needs 2.19 or later");
  }
  Runtime* runtime = nullptr;
  const Status made = ProcessRuntime(&runtime);
  if (!made.ok()) return Status(Code::kFailedPrecondition, made.message());
  if (runtime->device() == nullptr) {
    return Status(Code::kFailedPrecondition, "no fabric: " + runtime->no_fabric_reason());
  }
  *context = {NameOf(role),
              "element",
              runtime->device(),
              runtime->arena(),
              runtime->receive_arena(),
              &runtime->settings(),
              runtime->secret_file()};
  return OkStatus();
}

bool MayUseGrpc() {
  Settings settings;
  std::vector<std::string> warnings;
  const Status loaded = LoadSettings(environ, &settings, &warnings);
  return !loaded.ok() || settings.allow_fallback;
}

std::string Announcement(const Status& prepared, const std::string& grpc_address) {
  return prepared.ok() ? kReady + grpc_address : kRefusal + prepared.message();
}

Status CheckAnnouncement(const std::string& announcement, std::string* grpc_address) {
  const std::string ready = kReady;
  if (announcement.compare(0, ready.size(), ready) == 0) {
    *grpc_address = announcement.substr(ready.size());
    return OkStatus();
  }
  const std::string refusal = kRefusal;
  if (announcement.compare(0, refusal.size(), refusal) == 0) {
    return Status(Code::kFailedPrecondition,
                  "the worker has " + announcement.substr(refusal.size()));
  }
  return Status(Code::kFailedPrecondition, "the worker's 'rdma' protocol is not rdma_transport's");
}

}  // namespace rdma_transport
