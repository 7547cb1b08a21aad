#include "fabric/verbs/errors.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "fabric/verbs/memlock.h"
#include "messages.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Sets a soft limit for as long as it lives.
class SoftMemlockLimit {
 public:
  explicit SoftMemlockLimit(rlim_t bytes) {
    getrlimit(RLIMIT_MEMLOCK, &before_);
    rlimit changed = before_;
    changed.rlim_cur = bytes;
    set_ = setrlimit(RLIMIT_MEMLOCK, &changed) == 0;
  }
  ~SoftMemlockLimit() { setrlimit(RLIMIT_MEMLOCK, &before_); }
  bool set() const { return set_; }

 private:
  rlimit before_ = {};
  bool set_ = false;
};

TEST(VerbsErrors, EveryStatusOfAReliableConnectionHasANameASentenceAndAHint) {
  std::set<std::string> names;
  for (const ibv_wc_status status :
       {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR,
        IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR,
        IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ABORT_ERR,
        IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_GENERAL_ERR}) {
    const std::string name = CompletionName(status);
    EXPECT_EQ(name.rfind("IBV_WC_", 0), 0u) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
    const Status error = CompletionError(status, 129, "write of 65536 bytes", "rxe0:1 a -> b");
    EXPECT_FALSE(error.ok()) << name;
    ExpectHas(error.message(), "write of 65536 bytes failed (rxe0:1 a -> b): ");
    ExpectHas(error.message(),
              "(" + name + ", status " + std::to_string(status) + ", vendor error 129); ");
  }
}

TEST(VerbsErrors, AnyOtherStatusKeepsItsNumber) {
  EXPECT_EQ(CompletionName(IBV_WC_TM_ERR), "ibv_wc_status " + std::to_string(IBV_WC_TM_ERR));
  EXPECT_EQ(CompletionName(99), "ibv_wc_status 99");
  const Status error = CompletionError(99, 7, "read", "a -> b");
  EXPECT_EQ(error.code(), Code::kInternal);
  ExpectHas(error.message(), "status 99, vendor error 7");
}

TEST(VerbsErrors, APeerThatIsGoneIsUnavailableAndAFaultIsNot) {
  const auto code = [](ibv_wc_status status) { return CompletionError(status, 0, "", "").code(); };
  for (const ibv_wc_status status : {IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
                                     IBV_WC_WR_FLUSH_ERR, IBV_WC_REM_OP_ERR, IBV_WC_FATAL_ERR}) {
    EXPECT_EQ(code(status), Code::kUnavailable) << CompletionName(status);
  }
  EXPECT_EQ(code(IBV_WC_REM_ACCESS_ERR), Code::kPermissionDenied);
  for (const ibv_wc_status status :
       {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_REM_INV_REQ_ERR}) {
    EXPECT_EQ(code(status), Code::kInternal) << CompletionName(status);
  }
}

TEST(VerbsErrors, ALostPathNamesWhatUsuallyBreaksIt) {
  const std::string message = CompletionError(IBV_WC_RETRY_EXC_ERR, 129, "write", "").message();
  for (const char* part :
       {"4791", "jumbo", "PFC", "RDMA_TRANSPORT_GID_INDEX", "RDMA_TRANSPORT_MTU",
        "RDMA_TRANSPORT_PKEY", "RDMA_TRANSPORT_RETRY_TIMEOUT", "RDMA_TRANSPORT_RETRIES",
        "RDMA_TRANSPORT_TRAFFIC_CLASS", "RDMA_TRANSPORT_SERVICE_LEVEL"}) {
    ExpectHas(message, part);
  }
}

TEST(VerbsErrors, VerbsSayWhereAndWhatToDo) {
  const struct {
    int error;
    const char* verb;
    Code code;
    const char* hint;
  } cases[] = {
      {EACCES, "ibv_open_device", Code::kPermissionDenied, "/dev/infiniband"},
      {ENOENT, "ibv_open_device", Code::kNotFound, "/dev/infiniband"},
      {ENOSYS, "ibv_get_device_list", Code::kUnimplemented, "no RDMA"},
      {ENODEV, "ibv_create_qp", Code::kUnavailable, "RDMA_TRANSPORT_DEVICES"},
      {ENOMEM, "ibv_create_cq", Code::kResourceExhausted, "memory"},
      {EINVAL, "ibv_modify_qp", Code::kInvalidArgument, "RDMA_TRANSPORT_GID_INDEX"},
      {EINVAL, "ibv_create_qp", Code::kInternal, "errno 22"},
      {ETIMEDOUT, "ibv_modify_qp", Code::kUnavailable, "neighbour"},
      {ENETUNREACH, "ibv_modify_qp", Code::kUnavailable, "route"},
      {EAGAIN, "ibv_create_qp", Code::kUnavailable, "later"},
      {EOPNOTSUPP, "ibv_create_qp", Code::kUnimplemented, "cannot do this"},
      {EMFILE, "ibv_open_device", Code::kResourceExhausted, "ulimit -n"},
      {EDOM, "ibv_alloc_pd", Code::kInternal, "errno 33"},
  };
  for (const auto& [error, verb, code, hint] : cases) {
    const Status status = VerbError(error, verb, "mlx5_0:1");
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.message().rfind(std::string(verb) + " on mlx5_0:1: ", 0), 0u)
        << status.message();
    ExpectHas(status.message(), hint);
  }
}

TEST(VerbsErrors, ALowLimitOnLockedMemoryComesWithItsCures) {
  const Status status = RegistrationError(8 * kMiB, ENOMEM, 64 * kMiB, 4 * kMiB, "mlx5_0:1");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  for (const char* part :
       {"64 MiB with mlx5_0:1", "needs 68 MiB (71303168 bytes)", "may lock 8 MiB",
        "\n  shell: ulimit -l unlimited", "\n  systemd: LimitMEMLOCK=infinity",
        "\n  Docker: docker run --ulimit memlock=-1", "\n  Kubernetes: ", "IPC_LOCK",
        "\n  Slurm: PropagateResourceLimitsExcept=MEMLOCK"}) {
    ExpectHas(status.message(), part);
  }
}

TEST(VerbsErrors, ALimitThatIsHighEnoughIsNotBlamed) {
  for (const uint64_t limit : {68 * kMiB, kNoMemlockLimit}) {
    const Status status = RegistrationError(limit, ENOMEM, 64 * kMiB, 4 * kMiB, "mlx5_0:1");
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_EQ(status.message().find("is too low: this process needs"), std::string::npos);
    ExpectHas(status.message(), "it was about 64 MiB, after 4 MiB of this process");
  }
  EXPECT_EQ(RegistrationError(0, EINVAL, 1, 0, "x").code(), Code::kInternal);
}

TEST(VerbsErrors, ALimitOfNothingIsRefusedAsAPermission) {
  const Status status = RegistrationError(0, EPERM, kMiB, 0, "mlx5_0:1");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  ExpectHas(status.message(), "may lock 0 bytes");
  EXPECT_EQ(RegistrationError(kMiB, EPERM, kMiB, 0, "x").code(), Code::kPermissionDenied);
}

// For this thread; root has it, and is not limited then.
bool DropIpcLock() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  data[0].effective &= ~(1u << CAP_IPC_LOCK);
  return syscall(SYS_capset, &header, data) == 0;
}

TEST(VerbsErrors, TheLimitIsThatOfThisProcess) {
  const SoftMemlockLimit limit(4096);
  ASSERT_TRUE(limit.set());
  ASSERT_TRUE(DropIpcLock());
  EXPECT_EQ(MemlockLimit(), 4096u);
  ExpectHas(RegistrationError(MemlockLimit(), ENOMEM, kMiB, 0, "mlx5_0:1").message(),
            "may lock 4 KiB");
  ExpectHas(VerbError(ENOMEM, "ibv_create_cq", "mlx5_0:1").message(), "RLIMIT_MEMLOCK, 4096 bytes");
}

// As root of a container without privileges.
TEST(VerbsErrors, ACapabilityOfAnotherUserNamespaceLocksNoMemory) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER) != 0) _exit(2);
    const rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    _exit(MemlockLimit() == 4096 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "there are no user namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(VerbsErrors, EveryEventOfAReliableConnectionHasItsOwnSentence) {
  std::set<std::string> sentences;
  for (const ibv_event_type type :
       {IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
        IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_GID_CHANGE}) {
    const std::string sentence = EventSentence(type);
    EXPECT_EQ(sentence.find("unexpected"), std::string::npos) << type;
    EXPECT_TRUE(sentences.insert(sentence).second) << sentence;
  }
  ExpectHas(EventSentence(static_cast<ibv_event_type>(30)), "(30)");
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
