// What a traced step's RunMetadata says of the tensors that came from other tasks: the `RecvTensor`
// entries of TensorFlow's timelines, for those that came by the fabric. TensorFlow's own stubs of
// remote workers keep them for what came by gRPC.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "tensorflow/core/distributed_runtime/worker_cache_logger.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/step_stats.pb.h"

namespace rdma_transport {

// A WorkerCache's. Thread-safe.
class ReceiptLog {
 public:
  // Counts: each call with true takes one with false. Where a call of the master was cancelled,
  // false comes alone.
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
  // Adds what is known of the step to that of the same devices, and forgets it; false: nothing.
  bool Take(int64_t step, tensorflow::StepStats* stats) {
    tensorflow::StepStats taken;  // RetrieveLogs() puts its own in the place of what is there
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
