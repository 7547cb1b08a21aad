// All-reduce and reduce-scatter of the processors of several tasks.
//
// Each member combines a part of the contributions of all members, and in an all-reduce the others
// then fetch that part. Where hosts have several members, they combine on each host first
// (collectives/lanes.h). In an all-reduce of few bytes, each member reduces everything by itself,
// which saves one message. The order of contributions depends only on the group and on the size, so
// the result has the same bits on each member and in each run.
//
// Contributions and results are posted and fetched as other collectives' buffers are, under keys of
// their own: where memory is mapped, the others read them in place.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "collectives/lanes.h"
#include "collectives/types.h"
#include "plugin/collective_access.h"
#include "plugin/lane_reduction.h"
#include "tensorflow/core/framework/collective.h"

namespace rdma_transport {

// Its name in TensorFlow's registry.
inline constexpr char kDirectReduce[] = "RdmaDirectReduce";

// One member's end of one reduction. Never blocks. Calls the callback of Run() once, when nothing
// reads or writes the output any more, unless a lost peer may still read it.
class DirectReduce final : public tensorflow::CollectiveImplementationInterface, private LaneOwner {
 public:
  absl::Status InitializeCollectiveParams(tensorflow::CollectiveParams* params) override;
  absl::Status InitializeCollectiveContext(
      std::shared_ptr<tensorflow::CollectiveContext> context) override;
  void Run(tensorflow::StatusCallback done) override;

 private:
  absl::Status Prepare();
  collectives::Division Divide() const;
  CollectiveTransferArgs ArgsFor(const std::string& name, int from, int to,
                                 tensorflow::StatusCallback done);
  // Of a fetch: calls `arrived` after success, and then End().
  tensorflow::StatusCallback EndThen(Arrived arrived);
  absl::Status Finalize(tensorflow::Tensor* result);

  // LaneOwner:
  tensorflow::Tensor Contribution(const collectives::Round& range) const override;
  tensorflow::Tensor Result(const collectives::Round& range) const override;
  tensorflow::Tensor Scratch(const collectives::Round& range) override;
  void Post(const std::string& name, int to, const tensorflow::Tensor& tensor) override;
  void Fetch(const std::string& name, int from, tensorflow::Tensor* tensor,
             Arrived arrived) override;
  std::shared_ptr<CollectiveFetch> FetchInPlace(const std::string& name, int from, uint64_t bytes,
                                                Arrived arrived) override;
  bool Combine(const std::vector<const char*>& sources, bool last,
               tensorflow::Tensor* result) override;

  // Counts the reduction by what has carried it, and logs that when it changes.
  void Report();
  bool Failed();
  void End(const absl::Status& status);
  void Fail(const absl::Status& status);
  void Finish();

  std::shared_ptr<tensorflow::CollectiveContext> context_;
  CollectiveAccess* access_ = nullptr;
  tensorflow::StatusCallback done_;
  int rank_ = 0;
  int size_ = 0;
  collectives::DType dtype_ = collectives::DType::kFloat32;
  collectives::ReduceOp op_ = collectives::ReduceOp::kSum;
  bool scatters_ = false;
  bool whole_ = false;         // each member reduces everything
  tensorflow::Tensor input_;   // flat
  tensorflow::Tensor output_;  // flat; of this member's part if `scatters_`
  tensorflow::Tensor result_;  // of the whole, if `whole_`
  collectives::Division division_;
  std::deque<LaneReduction> lanes_;

  std::atomic<int> pending_{1};  // what must end before Finish()
  std::mutex mu_;
  absl::Status status_;
  std::set<std::string> tasks_;  // that this member sends to or receives from
};

}  // namespace rdma_transport
