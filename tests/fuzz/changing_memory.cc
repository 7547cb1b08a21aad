#include "changing_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace rdma_transport::fuzz {
namespace {

constexpr size_t kCapacity = size_t{64} << 10;
constexpr size_t kGuard = 4096;
constexpr size_t kMaxChanges = 4;

// What the handlers know.
struct Shown {
  char* memory = nullptr;  // kCapacity bytes, and a page that stays protected
  char* data = nullptr;
  size_t length = 0;
  const std::vector<Change>* changes = nullptr;
  uint32_t reads = 0;
  bool active = false;
  struct sigaction old_fault = {};
};

Shown g_shown;

void Protect(int protection) {
  if (mprotect(g_shown.memory, kCapacity, protection) != 0) std::abort();
}

#ifdef __x86_64__
constexpr greg_t kSingleStep = 0x100;

greg_t& Flags(void* context) {
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
}

void OnFault(int, siginfo_t* info, void* context) {
  const auto* address = static_cast<const char*>(info->si_addr);
  if (!g_shown.active || address < g_shown.memory || address >= g_shown.memory + kCapacity) {
    // Somebody else's: happens again, and the sanitizer reports it.
    sigaction(SIGSEGV, &g_shown.old_fault, nullptr);
    return;
  }
  Protect(PROT_READ | PROT_WRITE);
  for (const Change& change : *g_shown.changes) {
    if (change.before_read == g_shown.reads && change.offset < g_shown.length) {
      g_shown.data[change.offset] = static_cast<char>(change.value);
    }
  }
  ++g_shown.reads;
  Flags(context) |= kSingleStep;
}

void OnStep(int, siginfo_t*, void* context) {
  Flags(context) &= ~kSingleStep;
  if (g_shown.active) Protect(PROT_NONE);
}

void Catch(int signal, void (*handler)(int, siginfo_t*, void*), struct sigaction* old) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (sigaction(signal, &action, old) != 0) std::abort();
}
#endif

void Prepare() {
  if (g_shown.memory != nullptr) return;
  void* memory = mmap(nullptr, kCapacity + kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  g_shown.memory = static_cast<char*>(memory);
#ifdef __x86_64__
  Catch(SIGSEGV, &OnFault, &g_shown.old_fault);
  Catch(SIGTRAP, &OnStep, nullptr);
#endif
}

}  // namespace

std::vector<Change> TakeChanges(Input* input) {
  std::vector<Change> changes(input->Below(kMaxChanges));
  for (Change& change : changes) {
    change.before_read = input->Take<uint8_t>();
    change.offset = input->Take<uint8_t>();
    change.value = input->Take<uint8_t>();
  }
  return changes;
}

void WithChangingMemory(std::string_view bytes, const std::vector<Change>& changes,
                        const std::function<void(const char* data, size_t length)>& use) {
  Prepare();
  if (g_shown.active || changes.empty() || bytes.size() > kCapacity) {
    // Of this very length, so that the sanitizer sees what is read beside it.
    const auto copy = std::make_unique<char[]>(bytes.size());
    if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
    return use(copy.get(), bytes.size());
  }
  Protect(PROT_READ | PROT_WRITE);
  g_shown.data = g_shown.memory + kCapacity - bytes.size();
  g_shown.length = bytes.size();
  g_shown.changes = &changes;
  g_shown.reads = 0;
  if (!bytes.empty()) std::memcpy(g_shown.data, bytes.data(), bytes.size());
#ifdef __x86_64__
  g_shown.active = true;
  Protect(PROT_NONE);
#endif
  use(g_shown.data, g_shown.length);
  g_shown.active = false;
}

}  // namespace rdma_transport::fuzz
