#include "protocol/process.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/settings.h"
#include "protocol/report.h"
#include "protocol/status_socket.h"

namespace rdma_transport {
namespace {

std::mutex g_mu;
std::atomic<Runtime*> g_runtime{nullptr};
StatusSocket* g_status_socket = nullptr;
pid_t g_owner = 0;

void StopAtExit() {
  if (ProcessRuntimeIfMade() == nullptr || g_owner != getpid()) return;
  g_status_socket->Stop();
  ProcessRuntimeIfMade()->Stop();
}

}  // namespace

Runtime* ProcessRuntimeIfMade() { return g_runtime.load(); }

std::string ProcessStatsJson() { return StatsJson(ProcessRuntimeIfMade()); }

Status ProcessRuntime(Runtime** runtime) {
  std::lock_guard<std::mutex> lock(g_mu);
  Settings settings;
  std::vector<std::string> warnings;
  RDMA_RETURN_IF_ERROR(LoadSettings(environ, &settings, &warnings));
  if (g_runtime.load() == nullptr || g_owner != getpid()) {
    SetLogLevel(settings.log_level);
    for (const std::string& warning : warnings) Log(LogLevel::kWarning, warning);
    auto made = std::make_unique<Runtime>(settings);
    RDMA_RETURN_IF_ERROR(made->Start());
    if (g_owner == 0) std::atexit(&StopAtExit);
    g_owner = getpid();
    g_runtime.store(made.release());
    g_status_socket = new StatusSocket(&ProcessStatsJson);
    const Status listening = g_status_socket->Start();
    if (!listening.ok()) Log(LogLevel::kInfo, "no live status: " + listening.message());
  }
  *runtime = g_runtime.load();
  return OkStatus();
}

}  // namespace rdma_transport
