#include "plugin/direct_reduce.h"

#include <cstring>
#include <utility>

#include "collectives/reduce.h"
#include "plugin/mutable_buffers.h"
#include "plugin/reduction_types.h"
#include "protocol/poller.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/common_runtime/collective_util.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

// Up to this many bytes, each member reduces everything by itself. They travel in notifications.
constexpr size_t kMaxWhole = size_t{4} << 10;
// Reducing more than this takes longer than handing polling to another thread.
constexpr size_t kLongReduction = size_t{64} << 10;

constexpr char kContribution[] = "in";
constexpr char kReduced[] = "out";

char* DataOf(const tf::Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

tf::Tensor Flat(const tf::Tensor& tensor) {
  tf::Tensor flat;
  [[maybe_unused]] const bool same_size =
      flat.CopyFrom(tensor, tf::TensorShape({tensor.NumElements()}));
  return flat;
}

// Returns whether TensorFlow may overwrite the tensor even if it is shared.
bool MayChange(const tf::Tensor& tensor) {
  auto* buffer = const_cast<tf::TensorBuffer*>(tf::DMAHelper::buffer(&tensor));
  return buffer != nullptr && MutableBuffers::Get().Contains(buffer->root_buffer()->data());
}

[[maybe_unused]] const tf::CollectiveRegistration registered(kDirectReduce,
                                                             [] { return new DirectReduce; });

}  // namespace

absl::Status DirectReduce::InitializeCollectiveParams(tf::CollectiveParams*) {
  return absl::OkStatus();
}

absl::Status DirectReduce::InitializeCollectiveContext(
    std::shared_ptr<tf::CollectiveContext> context) {
  context_ = std::move(context);
  return tf::collective_util::InitializeDeviceAndLocality(
      context_->dev_mgr, context_->device_name, &context_->device, &context_->device_locality);
}

void DirectReduce::Run(tf::StatusCallback done) {
  done_ = std::move(done);
  const absl::Status ready = Prepare();
  if (!ready.ok()) return End(ready);
  if (input_.NumElements() > 0) Exchange();
  End(absl::OkStatus());
}

absl::Status DirectReduce::Prepare() {
  const tf::CollectiveParams& params = *context_->col_params;
  access_ = dynamic_cast<CollectiveAccess*>(context_->col_exec->remote_access());
  if (access_ == nullptr) {
    return absl::InternalError("a direct reduction on a server without rdma");
  }
  rank_ = params.default_rank;
  size_ = params.group.group_size;
  scatters_ = params.instance.type == tf::REDUCE_SCATTER_COLLECTIVE;
  TF_RETURN_IF_ERROR(Parse(params.instance.data_type, &dtype_));
  TF_RETURN_IF_ERROR(Parse(params.merge_op, &op_));

  const tf::Tensor& input = *context_->input;
  if (scatters_ && input.NumElements() != size_ * context_->output->NumElements()) {
    return absl::InvalidArgumentError(std::to_string(input.dim_size(0)) +
                                      " rows cannot be divided among " + std::to_string(size_) +
                                      " members of a reduce-scatter");
  }
  input_ = Flat(MayChange(input) ? tf::tensor::DeepCopy(input) : input);
  output_ = Flat(*context_->output);
  whole_ = !scatters_ && input_.TotalBytes() <= kMaxWhole;
  if (whole_) {
    // The others may still read the input, which the output may share.
    result_ = tf::Tensor(input_.dtype(), input_.shape());
  } else {
    result_ = scatters_ ? output_ : Slice(output_, PartOf(rank_));
  }
  return absl::OkStatus();
}

DirectReduce::Part DirectReduce::PartOf(int rank) const {
  const auto number = static_cast<size_t>(rank);
  if (whole_) return {number, 0, input_.TotalBytes()};
  if (scatters_) return {number, number * output_.TotalBytes(), output_.TotalBytes()};
  const size_t even = (input_.TotalBytes() + static_cast<size_t>(size_) - 1) / size_;
  return collectives::PartOf(input_.TotalBytes(), collectives::RoundUp(even), number);
}

tf::Tensor DirectReduce::Slice(const tf::Tensor& tensor, const Part& part) const {
  const size_t size = collectives::SizeOf(dtype_);
  return tensor.Slice(static_cast<int64_t>(part.begin / size),
                      static_cast<int64_t>((part.begin + part.length) / size));
}

// Empty parts are neither posted nor fetched.
void DirectReduce::Exchange() {
  const bool own = PartOf(rank_).length > 0;
  contributions_.resize(size_);
  parts_.resize(size_);
  if (own) missing_ = size_;  // and this function
  pending_ += missing_;
  for (int i = 1; i < size_; ++i) {
    const int to = (rank_ + i) % size_;
    if (PartOf(to).length > 0) Post(kContribution, to, Slice(input_, PartOf(to)));
  }
  for (int i = 1; i < size_; ++i) {
    const int from = (rank_ + i) % size_;
    if (!scatters_ && !whole_ && PartOf(from).length > 0) FetchPart(from);
    if (own) FetchContribution(from);
  }
  if (own) OnContribution(absl::OkStatus());
}

CollectiveTransferArgs DirectReduce::ArgsFor(const char* phase, int from, int to,
                                             tf::StatusCallback done) {
  const tf::CollGroupMember& peer = context_->col_params->group.members[from == rank_ ? to : from];
  CollectiveTransferArgs args;
  args.peer_device = peer.device.name();
  args.peer_task = peer.task;
  args.key =
      context_->exec_key + ":" + phase + ":" + std::to_string(from) + ":" + std::to_string(to);
  args.device = context_->device;
  args.context = context_->op_ctx->op_device_context();
  args.attributes = context_->op_ctx->output_alloc_attr(0);
  args.locality = peer.device.locality();
  args.cancellation = context_->op_ctx->cancellation_manager();
  args.done = std::move(done);
  return args;
}

void DirectReduce::Post(const char* phase, int to, const tf::Tensor& tensor) {
  ++pending_;
  const CollectiveTransferArgs args =
      ArgsFor(phase, rank_, to, [this](const absl::Status& status) { End(status); });
  access_->PostToPeer(args.peer_device, args.peer_task, args.key, args.device, args.context,
                      args.attributes, &tensor, args.locality, args.cancellation, args.done);
}

void DirectReduce::FetchPart(int from) {
  ++pending_;
  parts_[from] = Slice(output_, PartOf(from));
  const CollectiveTransferArgs args =
      ArgsFor(kReduced, from, rank_, [this](const absl::Status& status) { End(status); });
  access_->RecvFromPeer(args.peer_device, args.peer_task, /*peer_is_local=*/false, args.key,
                        args.device, args.context, args.attributes, &parts_[from], args.locality,
                        args.stream, args.cancellation, args.done);
}

void DirectReduce::FetchContribution(int from) {
  const auto arrived = [this](const absl::Status& status) { OnContribution(status); };
  contributions_[from] =
      access_->FetchInPlace(ArgsFor(kContribution, from, rank_, arrived), PartOf(rank_).length);
}

void DirectReduce::OnContribution(const absl::Status& status) {
  if (!status.ok()) Fail(status);
  if (--missing_ == 0) Combine();
  End(absl::OkStatus());
}

void DirectReduce::Combine() {
  if (Failed()) return;
  const absl::Status reduced = Reduce();
  if (!reduced.ok()) return Fail(reduced);
  if (!scatters_ && !whole_) {
    for (int i = 1; i < size_; ++i) Post(kReduced, (rank_ + i) % size_, result_);
  }
  for (const auto& contribution : contributions_) {
    if (contribution != nullptr) contribution->Release();
  }
}

absl::Status DirectReduce::Reduce() {
  const Part own = PartOf(rank_);
  std::vector<const char*> sources;
  for (int rank = 0; rank < size_; ++rank) {
    sources.push_back(rank == rank_ ? DataOf(input_) + own.begin : contributions_[rank]->data());
  }
  if (own.length > kLongReduction) Poller::LongWorkAhead();
  collectives::Reduce(dtype_, op_, sources, own.length / collectives::SizeOf(dtype_),
                      DataOf(result_), nullptr);
  tf::OpKernel* final_op = context_->col_params->final_op;
  if (final_op == nullptr) return absl::OkStatus();
  // As TensorFlow's ring does.
  tf::Tensor one(result_.dtype(), tf::TensorShape({1}));
  const std::unique_ptr<tf::CollectiveAdapter> adapter(tf::MakeCollectiveAdapter(
      &one, 1, context_->device->GetAllocator(tf::AllocatorAttributes())));
  tf::Tensor members = adapter->Scalar(size_);
  return tf::collective_util::ComputeBinOp(context_->op_ctx, context_->op_params, context_->device,
                                           final_op, &result_, &members);
}

bool DirectReduce::Failed() {
  std::lock_guard<std::mutex> lock(mu_);
  return !status_.ok();
}

void DirectReduce::Fail(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!status_.ok()) return;
    status_ = status;
  }
  // Ends the transfers of this step, here and at the other members. Cancelling an operation ends
  // its own transfers and, as in TensorFlow's ring, only those.
  tf::CancellationManager* cancellation = context_->op_ctx->cancellation_manager();
  if (cancellation != nullptr && (cancellation->IsCancelled() || cancellation->IsCancelling())) {
    return;
  }
  context_->col_exec->StartAbort(status);
}

void DirectReduce::End(const absl::Status& status) {
  if (!status.ok()) Fail(status);
  if (--pending_ == 0) Finish();
}

// No transfer is left, so nothing else runs here.
void DirectReduce::Finish() {
  contributions_.clear();
  if (status_.ok() && whole_) {
    std::memcpy(DataOf(output_), DataOf(result_), result_.TotalBytes());
  }
  // What follows may write into a tensor with one reference.
  input_ = output_ = result_ = tf::Tensor();
  parts_.clear();
  const tf::StatusCallback done = std::move(done_);
  done(status_);  // may destroy this object
}

}  // namespace rdma_transport
