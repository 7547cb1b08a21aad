// What can go wrong with verbs, in sentences: what happened, what it usually means, what to do.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::verbs {

// "IBV_WC_RETRY_EXC_ERR"; for a number that the header does not know "ibv_wc_status 99".
std::string CompletionName(int wc_status);

// A completion that is not a success. `operation`: what was under way ("write of 65536 bytes",
// "notification"); `route`: between whom ("rxe0:1 10.7.0.1 -> 10.7.0.2"). The code is Unavailable
// where the peer or the way to it is gone, otherwise what fits. Never for IBV_WC_SUCCESS.
Status CompletionError(int wc_status, uint32_t vendor_error, std::string_view operation,
                       std::string_view route);

// Flushed work is a consequence of an error that was reported before.
inline bool IsFlush(int wc_status) { return wc_status == IBV_WC_WR_FLUSH_ERR; }

// A verb that failed with `error` (an errno). `verb`: "ibv_create_qp"; `on`: which device and port.
Status VerbError(int error, std::string_view verb, std::string_view on);

// A registration of `length` bytes that failed with `error`, while `registered` bytes of this
// process were registered already. When RLIMIT_MEMLOCK explains it, the message has the need, the
// limit and the lines that mend it: shell, systemd, Docker, Kubernetes, Slurm.
Status RegistrationError(int error, uint64_t length, uint64_t registered, std::string_view on);

// Of an asynchronous event: what it means for people.
std::string EventSentence(ibv_event_type type);

}  // namespace rdma_transport::fabric::verbs
