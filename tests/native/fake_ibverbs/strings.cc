// Names of statuses, events, nodes and ports.

#include <infiniband/verbs.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "fake.h"

namespace fake_ibverbs {
namespace {

constexpr const char* kStatuses[] = {
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
};

// As in enum ibv_wc_status, without IBV_WC_.
constexpr const char* kStatusNames[] = {
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
};

constexpr const char* kEvents[] = {
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
    "WQ fatal",
};

constexpr const char* kNodes[] = {"unknown", "InfiniBand channel adapter", "InfiniBand switch",
                                  "InfiniBand router", "iWARP NIC"};

constexpr const char* kPorts[] = {"invalid state", "PORT_DOWN",   "PORT_INIT",
                                  "PORT_ARMED",    "PORT_ACTIVE", "PORT_ACTIVE_DEFER"};

template <size_t N>
const char* NameIn(const char* const (&names)[N], int index, const char* otherwise) {
  return index >= 0 && static_cast<size_t>(index) < N ? names[index] : otherwise;
}

}  // namespace

bool ParseWcStatus(const std::string& text, int* status) {
  std::string name = text;
  if (name.rfind("IBV_WC_", 0) == 0) name.erase(0, 7);
  const auto* found = std::find(std::begin(kStatusNames), std::end(kStatusNames), name);
  if (found != std::end(kStatusNames)) {
    *status = static_cast<int>(found - std::begin(kStatusNames));
    return true;
  }
  uint64_t number = 0;
  if (!ParseNumber(text, IBV_WC_TM_RNDV_INCOMPLETE, &number)) return false;
  *status = static_cast<int>(number);
  return true;
}

extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) { return NameIn(kStatuses, status, "unknown"); }

const char* ibv_event_type_str(ibv_event_type event) { return NameIn(kEvents, event, "unknown"); }

const char* ibv_node_type_str(ibv_node_type type) { return NameIn(kNodes, type, "unknown"); }

const char* ibv_port_state_str(ibv_port_state state) {
  return NameIn(kPorts, state, "invalid state");
}

}  // extern "C"

}  // namespace fake_ibverbs
