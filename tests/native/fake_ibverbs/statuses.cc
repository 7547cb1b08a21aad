// Names of statuses.

#include <infiniband/verbs.h>

#include <algorithm>
#include <cctype>
#include <string>

#include "fake.h"

namespace fake_ibverbs {
namespace {

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

}  // namespace fake_ibverbs
