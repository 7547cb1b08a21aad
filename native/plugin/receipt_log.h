// Records tensors from other tasks for a traced step's RunMetadata: the `RecvTensor` entries of
// TensorFlow's timelines, for tensors that came over the fabric. TensorFlow's own stubs record
// those that came over gRPC.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "tensorflow/core/distributed_runtime/worker_cache_logger.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/step_stats.pb.h"

namespace rdma_transport {

// Belongs to a WorkerCache. Thread-safe.
class ReceiptLog {
 public:
  // Calls nest: each call with true needs one with false. After a cancelled call of the master,
  // false may come alone.
  void SetActive(bool active) {
    log_.SetLogging(active);
    int wanted = wanted_.load();
    while (!wanted_.compare_exchange_weak(wanted, active ? wanted + 1 : std::max(wanted - 1, 0))) {
    }
  }
  bool active() const { return wanted_.load(std::memory_order_relaxed) > 0; }

  void Add(int64_t step, const tensorflow::Rendezvous::ParsedKey& key, int64_t begin_micros,
           int64_t end_micros, int64_t bytes) {
    log_.RecordRecvTensor(step, begin_micros, end_micros, std::string(key.edge_name),
                          std::string(key.src_device), std::string(key.dst_device), bytes);
  }

  void Clear() { log_.ClearLogs(); }
  // Moves the step's entries to the same devices in `stats`. Returns false if there are none.
  bool Take(int64_t step, tensorflow::StepStats* stats) {
    tensorflow::StepStats taken;  // RetrieveLogs() replaces the contents
    if (!log_.RetrieveLogs(step, &taken)) return false;
    for (const tensorflow::DeviceStepStats& device : taken.dev_stats()) {
      tensorflow::DeviceStepStats* known = nullptr;
      for (tensorflow::DeviceStepStats& other : *stats->mutable_dev_stats()) {
        if (other.device() == device.device()) known = &other;
      }
      if (known == nullptr) known = stats->add_dev_stats();
      known->MergeFrom(device);
    }
    return true;
  }

 private:
  tensorflow::WorkerCacheLogger log_;
  std::atomic<int> wanted_{0};
};

}  // namespace rdma_transport
