// Error messages of verbs: what happened, the usual cause, and what to do.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::verbs {

// Returns for example "IBV_WC_RETRY_EXC_ERR", or "ibv_wc_status 99" for a status with which work of
// a reliable connection does not end.
std::string CompletionName(int wc_status);

// Describes a failed completion. `operation` is for example "write of 65536 bytes" or
// "notification", and `route` "rxe0:1 10.7.0.1 -> 10.7.0.2". The code is Unavailable if the peer or
// the route to it is gone. `wc_status` must not be IBV_WC_SUCCESS.
Status CompletionError(int wc_status, uint32_t vendor_error, std::string_view operation,
                       std::string_view route);

// Returns whether the work was flushed because of an error that was reported earlier.
inline bool IsFlush(int wc_status) { return wc_status == IBV_WC_WR_FLUSH_ERR; }

// Returns whether the port or the way to the peer may be the cause, so that the work may succeed
// through another port.
bool MayBeThePort(int wc_status);

// Describes a verb that failed with `error`, an errno. `verb` is for example "ibv_create_qp", and
// `on` names device and port.
Status VerbError(int error, std::string_view verb, std::string_view on);

// Like VerbError(), for a verb that makes one of the `things` of which this process has `used` and
// the card `most`, for all processes. If there may be no more of them, the message has the numbers.
Status CreationError(int error, std::string_view verb, std::string_view on, std::string_view things,
                     int used, int most);

// Describes a registration of `length` bytes that failed with `error` while this process had
// registered `registered` bytes and may lock `limit`. If that is the cause, the message has the
// required size, the limit, and fixes for shell, systemd, Docker, Kubernetes and Slurm.
Status RegistrationError(uint64_t limit, int error, uint64_t length, uint64_t registered,
                         std::string_view on);

// Explains an asynchronous event to users.
std::string EventSentence(ibv_event_type type);

}  // namespace rdma_transport::fabric::verbs
