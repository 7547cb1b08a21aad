#include "fabric/verbs/memlock.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

namespace rdma_transport::fabric::verbs {
namespace {

// The kernel asks for the capability there (ib_umem_get() of drivers/infiniband/core/umem.c, by
// capable()): root of a container without privileges has it in its own user namespace only.
bool InFirstUserNamespace() {
  constexpr std::string_view kFirst = "user:[4026531837]";  // PROC_USER_INIT_INO
  char name[64];
  const ssize_t length = readlink("/proc/self/ns/user", name, sizeof(name));
  return length < 0 || std::string_view(name, static_cast<size_t>(length)) == kFirst;
}

// Returns whether the capability IPC_LOCK is effective. The kernel then ignores the limit.
bool MayLockAnyMemory() {
  if (!InFirstUserNamespace()) return false;
  constexpr int kIpcLock = 14;
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word != "CapEff:") continue;
    uint64_t capabilities = 0;
    status >> std::hex >> capabilities;
    return (capabilities >> kIpcLock & 1) != 0;
  }
  return false;
}

}  // namespace

std::string Bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g %s", value, kUnits[unit]);
  return text;
}

Status CheckMemlock(uint64_t needed, uint64_t limit) {
  if (limit >= needed) return OkStatus();
  return Status(Code::kResourceExhausted,
                "only " + Bytes(limit) + " of memory may be locked (RLIMIT_MEMLOCK). verbs needs " +
                    Bytes(needed) + " at start, and later what tensors take in the arena. " +
                    MemlockHelp());
}

uint64_t MemlockLimit() {
  if (MayLockAnyMemory()) return kNoMemlockLimit;
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return kNoMemlockLimit;
  }
  return limit.rlim_cur;
}

bool MemlockExplains(int error, uint64_t needed, uint64_t limit) {
  // With a limit of 0, the kernel returns EPERM without counting.
  return (error == ENOMEM && limit < needed) || (error == EPERM && limit == 0);
}

std::string MemlockHelp() {
  return "Raise the limit and start the task again:\n"
         "  shell: ulimit -l unlimited (if that is refused: '* - memlock unlimited' in "
         "/etc/security/limits.conf, and log in again)\n"
         "  systemd: LimitMEMLOCK=infinity in the unit\n"
         "  Docker: docker run --ulimit memlock=-1\n"
         "  Kubernetes: pods have the limit of the container runtime: LimitMEMLOCK=infinity in the "
         "unit of containerd or CRI-O on the node, or capabilities: add: [IPC_LOCK] in the "
         "container's securityContext\n"
         "  Slurm: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and LimitMEMLOCK=infinity "
         "in "
         "the unit of slurmd";
}

}  // namespace rdma_transport::fabric::verbs
