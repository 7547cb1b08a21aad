// TensorFlow's inter-op pool, except that work made ready by a delivery, and by such work, runs on
// the delivering thread: waking a pool thread costs more than transferring a small tensor.
#pragma once

#include <functional>

#include "protocol/poller.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/setround.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"

namespace rdma_transport {

// Thread-safe.
class InlinePool final : public tsl::thread::ThreadPoolInterface, public Poller::Pool {
 public:
  // `pool` must outlive this. `all_announce`: all kernels of the process run on a CpuDevice, which
  // announces long work. Otherwise work may wait behind a kernel that does not.
  InlinePool(tsl::thread::ThreadPool* pool, bool all_announce)
      : pool_(pool), all_announce_(all_announce) {}

  // ThreadPoolInterface.
  void Schedule(std::function<void()> work) override {
    if (Poller::Defer(&work) || (all_announce_ && Poller::DeferMore(&work))) return;
    pool_->Schedule(std::move(work));
  }
  int NumThreads() const override { return pool_->NumThreads(); }
  int CurrentThreadId() const override { return pool_->CurrentThreadId(); }

  // Poller::Pool has the same Schedule(), and calls it when nothing is deferred any more.
  // RunHere() sets the floating-point environment of a pool thread, because results must not depend
  // on the thread.
  void RunHere(const std::function<void()>& work) override {
    const tsl::port::ScopedFlushDenormal flush;
    const tsl::port::ScopedSetRound round(FE_TONEAREST);
    work();
  }

 private:
  tsl::thread::ThreadPool* const pool_;
  const bool all_announce_;
};

}  // namespace rdma_transport
