// TensorFlow's inter-op pool, save that what a delivery makes ready runs on the thread that
// delivered it: waking a pool thread costs more than a small tensor's whole journey.
#pragma once

#include <functional>

#include "protocol/runtime.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/setround.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"

namespace rdma_transport {

class InlinePool final : public tsl::thread::ThreadPoolInterface, public Runtime::Pool {
 public:
  // `pool` outlives this.
  explicit InlinePool(tsl::thread::ThreadPool* pool) : pool_(pool) {}

  // ThreadPoolInterface.
  void Schedule(std::function<void()> work) override {
    if (!Runtime::Defer(&work)) pool_->Schedule(std::move(work));
  }
  int NumThreads() const override { return pool_->NumThreads(); }
  int CurrentThreadId() const override { return pool_->CurrentThreadId(); }

  // Runtime::Pool has the same Schedule(), called when nothing is deferred any more.
  // The floating-point environment is a pool thread's: results must not depend on the thread.
  void RunHere(const std::function<void()>& work) override {
    const tsl::port::ScopedFlushDenormal flush;
    const tsl::port::ScopedSetRound round(FE_TONEAREST);
    work();
  }

 private:
  tsl::thread::ThreadPool* const pool_;
};

}  // namespace rdma_transport
