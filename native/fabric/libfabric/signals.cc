#include "fabric/libfabric/signals.h"

namespace rdma_transport::fabric::libfabric {
namespace {

std::mutex& Mutex() {
  static auto* mu = new std::mutex;
  return *mu;
}

bool Same(const struct sigaction& a, const struct sigaction& b) {
  if (a.sa_flags != b.sa_flags) return false;
  return (a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction
                                        : a.sa_handler == b.sa_handler;
}

}  // namespace

SignalKeeper::SignalKeeper() : lock_(Mutex()) {
  for (int number = 1; number < NSIG; ++number) {
    Saved& saved = before_[static_cast<size_t>(number)];
    saved.known = sigaction(number, nullptr, &saved.action) == 0;  // the C library has its own
  }
}

SignalKeeper::~SignalKeeper() {
  for (int number = 1; number < NSIG; ++number) {
    const Saved& saved = before_[static_cast<size_t>(number)];
    struct sigaction now = {};
    if (!saved.known || sigaction(number, nullptr, &now) != 0) continue;
    if (!Same(now, saved.action)) sigaction(number, &saved.action, nullptr);
  }
}

}  // namespace rdma_transport::fabric::libfabric
