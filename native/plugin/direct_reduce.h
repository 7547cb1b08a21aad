// All-reduce and reduce-scatter of the processors of several tasks.
//
// Each member reduces its part out of the contributions of all members, in the order of their
// ranks, so the result has the same bits on each member and in each run. For an all-reduce, the
// members then copy each other's parts. In an all-reduce of few bytes, each member reduces
// everything by itself, which saves one message.
//
// Contributions and parts are posted and fetched as other collectives' buffers are, under keys of
// their own: where memory is mapped, the others read them in place.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/round.h"
#include "collectives/types.h"
#include "plugin/collective_access.h"
#include "tensorflow/core/framework/collective.h"

namespace rdma_transport {

// Its name in TensorFlow's registry.
inline constexpr char kDirectReduce[] = "RdmaDirectReduce";

// One member's end of one reduction. Never blocks. Calls the callback of Run() once, when nothing
// reads or writes the output any more, unless a lost peer may still read it.
class DirectReduce final : public tensorflow::CollectiveImplementationInterface {
 public:
  absl::Status InitializeCollectiveParams(tensorflow::CollectiveParams* params) override;
  absl::Status InitializeCollectiveContext(
      std::shared_ptr<tensorflow::CollectiveContext> context) override;
  void Run(tensorflow::StatusCallback done) override;

 private:
  using Part = collectives::Round;  // of the whole tensor, in bytes

  Part PartOf(int rank) const;
  absl::Status Prepare();
  void Exchange();
  void Post(const char* phase, int to, const tensorflow::Tensor& tensor);
  void FetchContribution(int from);
  void FetchPart(int from);
  tensorflow::Tensor Slice(const tensorflow::Tensor& tensor, const Part& part) const;
  CollectiveTransferArgs ArgsFor(const char* phase, int from, int to,
                                 tensorflow::StatusCallback done);

  void OnContribution(const absl::Status& status);
  void Combine();
  absl::Status Reduce();
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
  bool whole_ = false;                     // each member reduces everything
  tensorflow::Tensor input_;               // flat
  tensorflow::Tensor output_;              // flat; of this member's part if `scatters_`
  tensorflow::Tensor result_;              // what this member reduces
  std::vector<tensorflow::Tensor> parts_;  // of the output, by rank
  std::vector<std::shared_ptr<CollectiveFetch>> contributions_;  // by rank; null: this one's

  std::atomic<int> missing_{0};  // contributions; Exchange() counts as one
  std::atomic<int> pending_{1};  // what must end before Finish()
  std::mutex mu_;
  absl::Status status_;
};

}  // namespace rdma_transport
