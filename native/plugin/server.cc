// The server behind protocol='rdma': TensorFlow's gRPC server as the control plane, with this
// transport's devices, rendezvous, worker service and worker stubs.

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "plugin/collective_mgr.h"
#include "plugin/collective_steps.h"
#include "plugin/cpu_device.h"
#include "plugin/device_names.h"
#include "plugin/eager_clients.h"
#include "plugin/inline_pool.h"
#include "plugin/rendezvous.h"
#include "plugin/send_op.h"
#include "plugin/status_conversion.h"
#include "plugin/worker.h"
#include "plugin/worker_cache.h"
#include "protocol/endpoint.h"
#include "protocol/process.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/tensorflow_server.pb.h"
#include "tensorflow/core/public/session_options.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// The host of "host:port". All names of loopback are one host.
std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host == "127.0.0.1" || host == "[::1]") host = "localhost";
  return host;
}

// The number of tasks whose address has this task's host, including itself.
size_t TasksOnHost(const tf::ServerDef& server_def) {
  std::string own;
  std::map<std::string, size_t> tasks;
  for (const tf::JobDef& job : server_def.cluster().job()) {
    for (const auto& [index, address] : job.tasks()) {
      ++tasks[HostOf(address)];
      const bool self = job.name() == server_def.job_name() && index == server_def.task_index();
      if (self) own = HostOf(address);
    }
  }
  return std::max<size_t>(tasks[own], 1);
}

// Why a server cannot listen at a port of this host: what another attempt says.
std::string WhyNotBound(int port) {
  const int one = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) return StatusFromErrno(errno, "socket").message();
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  int error = bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
                      listen(made, 1) != 0
                  ? errno
                  : 0;
  close(made);
  if (error == 0) return "the port is free now, so another process had it for a moment";
  const std::string number = std::to_string(port);
  if (error == EADDRINUSE) {
    return "another process listens there (`ss -ltnp sport = :" + number + "` shows which)";
  }
  return StatusFromErrno(error, "bind to port " + number).message();
}

class RdmaServer final : public tf::GrpcServer {
 public:
  static absl::Status Create(const tf::ServerDef& server_def, tf::DeviceMgr* local_devices,
                             std::unique_ptr<tf::ServerInterface>* out) {
    Runtime* runtime = nullptr;
    const Status status = ProcessRuntime(&runtime);
    if (!status.ok()) return ToTensorFlow(status);
    std::unique_ptr<RdmaServer> server(new RdmaServer(server_def, runtime));
    const absl::Status made = server->InitAll(local_devices);
    if (!made.ok()) return made;
    *out = std::move(server);
    return absl::OkStatus();
  }

  absl::Status AddMasterEagerContextToEagerService(const uint64_t context_id,
                                                   tf::EagerContext* context) override {
    EagerClients::Get().Add(context_id);
    return GrpcServer::AddMasterEagerContextToEagerService(context_id, context);
  }

 protected:
  // Called with the server's own cluster, and again with each cluster that a client sends.
  absl::Status WorkerCacheFactory(const tf::WorkerCacheFactoryOptions& options,
                                  tf::WorkerCacheInterface** cache) override {
    tf::WorkerCacheInterface* inner = nullptr;
    const absl::Status status = GrpcServer::WorkerCacheFactory(options, &inner);
    if (!status.ok()) return status;
    *cache = new WorkerCache(std::unique_ptr<tf::WorkerCacheInterface>(inner), endpoint_,
                             TaskName(options.job_name, options.task_index), options.cluster_def);
    return absl::OkStatus();
  }

  // TensorFlow's version replaces our manager of collectives by one of its own, which other tasks
  // must not reach: it would be gone before it answers.
  absl::Status UpdateServerDef(const tf::ServerDef& server_def) override {
    std::unique_lock<std::shared_mutex> lock(collectives_);
    const absl::Status status = GrpcServer::UpdateServerDef(server_def);
    if (!status.ok()) return status;
    tf::CollectiveExecutorMgrInterface* collectives = nullptr;
    const absl::Status made = NewCollectiveMgr(server_def, worker_env(), &collectives);
    if (!made.ok()) return made;
    worker_env()->collective_executor_mgr.reset(collectives);
    master_env()->collective_executor_mgr = collectives;
    ShareMemory(server_def);
    // The previous manager's tensors and aborts are not for this one.
    endpoint_->RestartStep(StepOfCollectives(0));
    return absl::OkStatus();
  }

 private:
  RdmaServer(const tf::ServerDef& server_def, Runtime* runtime)
      : GrpcServer(server_def, tf::Env::Default()), runtime_(runtime) {}

  static std::string TaskOf(const tf::ServerDef& server_def) {
    return TaskName(server_def.job_name(), server_def.task_index());
  }

  void ShareMemory(const tf::ServerDef& server_def) {
    runtime_->ShareMemory(endpoint_, TasksOnHost(server_def));
  }

  // gRPC says only that it could not start.
  absl::Status Explain(const absl::Status& status, int port) {
    if (status.code() != absl::StatusCode::kUnknown) return status;
    return absl::Status(status.code(), std::string(status.message()) + " for " +
                                           TaskOf(server_def()) + " at port " +
                                           std::to_string(port) + ": " + WhyNotBound(port));
  }

  // Uses a separate worker cache for that cluster.
  absl::Status NewCollectiveMgr(const tf::ServerDef& server_def, const tf::WorkerEnv* env,
                                tf::CollectiveExecutorMgrInterface** mgr) {
    tf::WorkerCacheInterface* cache = nullptr;
    const absl::Status status =
        WorkerCacheFactory(tf::WorkerCacheFactoryOptions(server_def), &cache);
    if (!status.ok()) return status;
    *mgr = MakeCollectiveMgr(server_def.default_session_config(), env->device_mgr,
                             std::shared_ptr<tf::WorkerCacheInterface>(cache), endpoint_);
    return absl::OkStatus();
  }

  static bool AllAnnounce(const tf::DeviceMgr& devices) {
    const auto all = devices.ListDevices();
    return std::all_of(all.begin(), all.end(), [](tf::Device* device) {
      return dynamic_cast<CpuDevice*>(device) != nullptr;
    });
  }

  absl::Status InitAll(tf::DeviceMgr* local_devices) {
    // First, because devices of a task outside the cluster abort the process.
    std::string host;
    int port = 0;
    absl::Status status = GetHostAndPort(server_def(), &host, &port);
    if (!status.ok()) return status;
    // TensorFlow never destroys a server that has started, and its peers may call at any time.
    endpoint_ = new Endpoint(runtime_, TaskOf(server_def()));
    ShareMemory(server_def());
    if (local_devices == nullptr) {
      tf::SessionOptions options;
      options.config = server_def().default_session_config();
      // As in GrpcServer::Init(): XLA's collectives find the GPUs of all tasks by it.
      auto* gpus = options.config.mutable_gpu_options()->mutable_experimental();
      gpus->set_populate_pjrt_gpu_client_creation_info(true);
      gpus->set_node_id(server_def().task_index());
      std::vector<std::unique_ptr<tf::Device>> devices;
      status = MakeDevices(options, TaskOf(server_def()), runtime_, &devices);
      if (!status.ok()) return status;
      devices_ = std::make_unique<tf::StaticDeviceMgr>(std::move(devices));
      local_devices = devices_.get();
    }
    for (const tf::Device* device : local_devices->ListDevices()) {
      RegisterSendOp(device->device_type());
    }
    tf::GrpcServerOptions options;
    options.local_device_mgr = local_devices;
    options.rendezvous_mgr_func = [this](const tf::WorkerEnv* env) {
      return new RendezvousMgr(env, endpoint_);
    };
    options.worker_func = [this](tf::WorkerEnv* env, const tf::ConfigProto& config) {
      return std::make_unique<Worker>(env, config, endpoint_, &collectives_);
    };
    absl::Status made_collectives;
    options.collective_mgr_func = [&](const tf::ConfigProto&, const tf::WorkerEnv* env,
                                      tf::WorkerCacheInterface*) {
      tf::CollectiveExecutorMgrInterface* mgr = nullptr;
      made_collectives = NewCollectiveMgr(server_def(), env, &mgr);
      return mgr;
    };
    status = Explain(Init(options), port);
    status.Update(made_collectives);
    if (!status.ok()) return status;
    static auto* pool = new InlinePool(worker_env()->compute_pool, AllAnnounce(*local_devices));
    static auto* inline_pool = new tsl::thread::ThreadPool(pool);
    runtime_->SetPool(pool);
    worker_env()->compute_pool = inline_pool;
    LogStart();
    return absl::OkStatus();
  }

  // TensorFlow logs a server of grpc://.
  void LogStart() const {
    const fabric::Device* device = runtime_->device();
    const std::string fabrics =
        device == nullptr ? "no fabric: " + runtime_->no_fabric_reason() : device->Summary();
    Log(LogLevel::kInfo, "server " + TaskOf(server_def()) + ": rdma_transport " +
                             RDMA_TRANSPORT_VERSION + ", TensorFlow " + RDMA_TRANSPORT_TF_VERSION +
                             "; " + fabrics + "; fallback " +
                             (runtime_->settings().allow_fallback ? "allow" : "forbid"));
  }

  Runtime* const runtime_;
  Endpoint* endpoint_ = nullptr;  // lives as long as the process
  std::unique_ptr<tf::DeviceMgr> devices_;
  std::shared_mutex collectives_;  // held exclusively while their manager is replaced
};

class RdmaServerFactory final : public tf::ServerFactory {
 public:
  bool AcceptsOptions(const tf::ServerDef& server_def) override {
    const std::string& protocol = server_def.protocol();
    return protocol == "rdma" || protocol == "grpc+verbs" || protocol == "grpc+rdma";
  }
  absl::Status NewServer(const tf::ServerDef& server_def, const Options& options,
                         std::unique_ptr<tf::ServerInterface>* out) override {
    return RdmaServer::Create(server_def, options.local_device_mgr, out);
  }
};

[[maybe_unused]] const bool server_registered = [] {
  tf::ServerFactory::Register("RDMA_SERVER", new RdmaServerFactory);
  return true;
}();

}  // namespace
}  // namespace rdma_transport
