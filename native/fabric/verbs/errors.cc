#include "fabric/verbs/errors.h"

#include <cerrno>
#include <cstring>

#include "fabric/verbs/memlock.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr char kPathHint[] =
    "see whether the peer lives and the link is up; with RoCE also: the GID "
    "(RDMA_TRANSPORT_GID_INDEX; both sides need one of the same kind that can be routed to the "
    "other), UDP port 4791 in firewalls, jumbo frames on every switch (RDMA_TRANSPORT_MTU=1024 "
    "avoids them), loss of packets (PFC and ECN, and the class they are set up for: "
    "RDMA_TRANSPORT_TRAFFIC_CLASS, RDMA_TRANSPORT_SERVICE_LEVEL); with InfiniBand: that both sides "
    "are in one partition (RDMA_TRANSPORT_PKEY); RDMA_TRANSPORT_RETRY_TIMEOUT and "
    "RDMA_TRANSPORT_RETRIES set how long the card tries";
constexpr char kBugHint[] = "this is a fault of rdma_transport or of the card's driver: report it";
constexpr char kPermissionHint[] =
    "this user needs to read and write /dev/infiniband/uverbs* (a container needs them as devices: "
    "docker run --device=/dev/infiniband)";

struct Completion {
  ibv_wc_status status;
  const char* name;
  Code code;
  const char* sentence;
  const char* hint;
};

// The statuses with which work of a reliable connection can end.
constexpr Completion kCompletions[] = {
    {IBV_WC_LOC_LEN_ERR, "IBV_WC_LOC_LEN_ERR", Code::kInternal,
     "a length that this side's queue pair or port does not allow, or a message larger than the "
     "buffer that waited for it",
     "a smaller RDMA_TRANSPORT_CHUNK may help; otherwise report it"},
    {IBV_WC_LOC_QP_OP_ERR, "IBV_WC_LOC_QP_OP_ERR", Code::kInternal,
     "this side's queue pair refused the work request as inconsistent",
     "Soft-RoCE says this when its interface is down: look at `ip link`; a card does not, then it "
     "is a fault of rdma_transport or of its driver: report it"},
    {IBV_WC_LOC_PROT_ERR, "IBV_WC_LOC_PROT_ERR", Code::kInternal,
     "the local end is not in memory that is registered with this card, or not for this use",
     kBugHint},
    {IBV_WC_WR_FLUSH_ERR, "IBV_WC_WR_FLUSH_ERR", Code::kUnavailable,
     "the queue pair had failed, or was closed, before this was done",
     "the cause is the first error of this peer that is not a flush"},
    {IBV_WC_BAD_RESP_ERR, "IBV_WC_BAD_RESP_ERR", Code::kInternal,
     "the peer's card answered with something that does not fit what was asked",
     "compare the firmware of the two cards"},
    {IBV_WC_LOC_ACCESS_ERR, "IBV_WC_LOC_ACCESS_ERR", Code::kPermissionDenied,
     "the peer wrote to memory of this side that does not allow it, or lies elsewhere", kBugHint},
    {IBV_WC_REM_INV_REQ_ERR, "IBV_WC_REM_INV_REQ_ERR", Code::kInternal,
     "the peer's card does not accept such a request: its buffer is too small, the operation is "
     "not enabled on its queue pair, or the message is too long",
     "see whether both sides run the same version of rdma_transport; a smaller "
     "RDMA_TRANSPORT_CHUNK may help"},
    {IBV_WC_REM_ACCESS_ERR, "IBV_WC_REM_ACCESS_ERR", Code::kPermissionDenied,
     "the peer's card refused access to its memory: the key is not valid there, or the stretch is "
     "outside of the region, or the region does not allow this",
     "the peer may have released the memory, or been restarted; if it did neither, report "
     "it"},
    {IBV_WC_REM_OP_ERR, "IBV_WC_REM_OP_ERR", Code::kUnavailable,
     "the peer's side could not complete the operation", "see the peer's log and kernel log"},
    {IBV_WC_RETRY_EXC_ERR, "IBV_WC_RETRY_EXC_ERR", Code::kUnavailable,
     "the peer's card did not answer after all retries: the peer is gone, or packets do "
     "not arrive there or not come back",
     kPathHint},
    {IBV_WC_RNR_RETRY_EXC_ERR, "IBV_WC_RNR_RETRY_EXC_ERR", Code::kUnavailable,
     "the peer's card answered, but its process gave it no buffer to receive into for too long: "
     "it is stopped, or very busy",
     "see what the peer's process does (is it stopped, swapping, or short of processors?)"},
    {IBV_WC_REM_ABORT_ERR, "IBV_WC_REM_ABORT_ERR", Code::kUnavailable,
     "the peer's side aborted the operation", "see the peer's log"},
    {IBV_WC_FATAL_ERR, "IBV_WC_FATAL_ERR", Code::kUnavailable,
     "the card had a fatal error, or is being reset",
     "see the kernel log (dmesg) for the card; another one can be chosen by "
     "RDMA_TRANSPORT_DEVICES"},
    {IBV_WC_RESP_TIMEOUT_ERR, "IBV_WC_RESP_TIMEOUT_ERR", Code::kUnavailable,
     "the peer did not respond in time", kPathHint},
    {IBV_WC_GENERAL_ERR, "IBV_WC_GENERAL_ERR", Code::kInternal,
     "the card reported an error that fits no other description",
     "see the kernel log (dmesg) for the card"},
};

const Completion* FindCompletion(int wc_status) {
  for (const Completion& completion : kCompletions) {
    if (completion.status == wc_status) return &completion;
  }
  return nullptr;
}

struct Meaning {
  Code code;
  std::string hint;  // may be empty
};

constexpr char kRouteHint[] =
    "there is no route to the peer's GID, or its neighbour entry cannot be resolved: compare the "
    "GIDs of both sides (RDMA_TRANSPORT_GID_INDEX, RDMA_TRANSPORT_DEVICES), and see whether the "
    "peer's address answers to ping from the interface of this port";

Meaning MeaningOf(int error, std::string_view verb) {
  const bool connects = verb.rfind("ibv_modify_qp", 0) == 0;  // "ibv_modify_qp to RTR"
  const bool opens = verb == "ibv_open_device" || verb == "ibv_get_device_list";
  switch (error) {
    case EPERM:
    case EACCES:
      return {Code::kPermissionDenied, kPermissionHint};
    case ENODEV:
    case ENXIO:
    case EIO:
      return {Code::kUnavailable,
              "the card is gone or being reset: see the kernel log (dmesg) for it; another one can "
              "be chosen by RDMA_TRANSPORT_DEVICES"};
    case ENOENT:
      if (!opens) break;
      return {Code::kNotFound, kPermissionHint};
    case ENOMEM: {
      const uint64_t limit = MemlockLimit();
      if (limit == kNoMemlockLimit) {
        return {Code::kResourceExhausted,
                "there is not enough memory, or the card has no more of these"};
      }
      return {Code::kResourceExhausted,
              "there is not enough memory, or the card has no more of these, or the limit on "
              "locked memory (RLIMIT_MEMLOCK, " +
                  std::to_string(limit) + " bytes) is too low. " + MemlockHelp()};
    }
    case EFAULT:
      return {Code::kInternal, "the memory is not mapped, or of a kind that cannot be pinned"};
    case EINVAL:
      if (!connects) return {Code::kInternal, ""};
      return {Code::kInvalidArgument,
              "one of these does not suit this port or the peer's: GID (RDMA_TRANSPORT_GID_INDEX; "
              "the entry may have gone, or be of another kind than the peer's), MTU "
              "(RDMA_TRANSPORT_MTU), partition key (RDMA_TRANSPORT_PKEY), service level "
              "(RDMA_TRANSPORT_SERVICE_LEVEL), retries (RDMA_TRANSPORT_RETRY_TIMEOUT, "
              "RDMA_TRANSPORT_RETRIES)"};
    case ETIMEDOUT:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
      return {Code::kUnavailable, connects ? kRouteHint : "the card or the network did not answer"};
    case EAGAIN:
    case EBUSY:
    case EINTR:
      return {Code::kUnavailable, "it may work later"};
    case ENOSYS:
    case EOPNOTSUPP:
    case EPROTONOSUPPORT:
      return {Code::kUnimplemented,
              opens
                  ? "this kernel has no RDMA: its modules (ib_uverbs and the card's, or rdma_rxe) "
                    "are not loaded"
                  : "the card or its driver cannot do this; another one can be chosen by "
                    "RDMA_TRANSPORT_DEVICES"};
    case EMFILE:
    case ENFILE:
      return {Code::kResourceExhausted, "raise the limit on open files (ulimit -n)"};
    default:
      break;
  }
  return {StatusFromErrno(error, "").code(), ""};
}

std::string WithHint(std::string sentence, std::string_view hint) {
  if (!hint.empty()) sentence.append("; ").append(hint);
  return sentence;
}

}  // namespace

std::string CompletionName(int wc_status) {
  const Completion* completion = FindCompletion(wc_status);
  return completion == nullptr ? "ibv_wc_status " + std::to_string(wc_status) : completion->name;
}

Status CompletionError(int wc_status, uint32_t vendor_error, std::string_view operation,
                       std::string_view route) {
  const Completion* completion = FindCompletion(wc_status);
  std::string message(operation);
  message.append(" failed (").append(route).append("): ");
  message += completion == nullptr ? "the card reported an error that it should not report here"
                                   : completion->sentence;
  message += " (" + CompletionName(wc_status) + ", status " + std::to_string(wc_status) +
             ", vendor error " + std::to_string(vendor_error) + ")";
  if (completion == nullptr) {
    return Status(Code::kInternal,
                  WithHint(std::move(message), "suspect the card's driver or firmware"));
  }
  return Status(completion->code, WithHint(std::move(message), completion->hint));
}

bool MayBeThePort(int wc_status) {
  switch (wc_status) {
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_LOC_QP_OP_ERR:  // of Soft-RoCE, when its interface is down
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_GENERAL_ERR:
      return true;
    default:
      return false;
  }
}

Status VerbError(int error, std::string_view verb, std::string_view on) {
  std::string what(verb);
  if (!on.empty()) what.append(" on ").append(on);
  const Meaning meaning = MeaningOf(error, verb);
  return Status(meaning.code, WithHint(StatusFromErrno(error, what).message(), meaning.hint));
}

Status CreationError(int error, std::string_view verb, std::string_view on, std::string_view things,
                     int used, int most) {
  const Status status = VerbError(error, verb, on);
  if (status.code() != Code::kResourceExhausted) return status;
  const std::string numbers = "; this process has " + std::to_string(used) + " " +
                              std::string(things) + ", the card " + std::to_string(most) +
                              " for all processes";
  if (used < most) return Status(status.code(), status.message() + numbers);
  std::string what(verb);
  what.append(" on ").append(on);
  return Status(status.code(),
                StatusFromErrno(error, what).message() + numbers +
                    ": a task with fewer peers, or a lower RDMA_TRANSPORT_PORTS, needs fewer");
}

Status RegistrationError(uint64_t limit, int error, uint64_t length, uint64_t registered,
                         std::string_view on) {
  const uint64_t needed = registered + length;
  if (!MemlockExplains(error, needed, limit)) {
    const Status status = VerbError(error, "ibv_reg_mr", on);
    return Status(status.code(), status.message() + "; it was about " + Bytes(length) + ", after " +
                                     Bytes(registered) + " of this process");
  }
  return Status(
      Code::kResourceExhausted,
      "cannot register " + Bytes(length) + " with " + std::string(on) +
          ": the limit on locked memory (RLIMIT_MEMLOCK) is too low: this process needs " +
          Bytes(needed) + " (" + std::to_string(needed) + " bytes), and may lock " + Bytes(limit) +
          ". " + MemlockHelp());
}

std::string EventSentence(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      return "a completion queue overflowed or failed: no more completions come from it";
    case IBV_EVENT_QP_FATAL:
      return "a queue pair failed: its connection is lost";
    case IBV_EVENT_QP_REQ_ERR:
      return "a queue pair refused a peer's request: its connection is lost";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "a peer reached for memory that it may not use: its connection is lost";
    case IBV_EVENT_COMM_EST:
      return "a peer's first packet came before its connection was complete";
    case IBV_EVENT_DEVICE_FATAL:
      return "the card had a fatal error: every connection of it is lost (see dmesg)";
    case IBV_EVENT_PORT_ACTIVE:
      return "the port is up again";
    case IBV_EVENT_PORT_ERR:
      return "the port went down: its connections end when their retries do (cable, switch, or the "
             "interface set down)";
    case IBV_EVENT_LID_CHANGE:
      return "the subnet manager gave the port another LID: existing connections may be lost";
    case IBV_EVENT_PKEY_CHANGE:
      return "the port's partition keys changed: existing connections may be lost";
    case IBV_EVENT_SM_CHANGE:
      return "another subnet manager took over";
    case IBV_EVENT_CLIENT_REREGISTER:
      return "the subnet manager wants registrations again";
    case IBV_EVENT_GID_CHANGE:
      return "the port's GIDs changed (an address was added or removed): existing connections may "
             "be lost";
    default:  // of features that this program does not use, or of a later library
      return "an unexpected event (" + std::to_string(static_cast<int>(type)) + ")";
  }
}

}  // namespace rdma_transport::fabric::verbs
