// A thread that handles no signals but those of its own errors and a profiler's: others are for the
// threads of the process's own program.
#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace rdma_transport {

// Returns a thread that runs `function`. `name`: as in /proc, at most 15 characters. Throws
// std::system_error if the process may have no more threads.
template <typename Function>
std::thread QuietThread(const char* name, Function function) {
  // The mask is inherited, so no signal can come before it is set.
  struct Blocked {
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGPROF}) {
        sigdelset(&all, own);
      }
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } blocked;
  std::thread thread(std::move(function));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace rdma_transport
