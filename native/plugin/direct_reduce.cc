#include "plugin/direct_reduce.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/float_mode.h"
#include "base/log.h"
#include "collectives/reduce.h"
#include "plugin/collective_choice.h"
#include "plugin/mutable_buffers.h"
#include "plugin/reduction_types.h"
#include "protocol/counters.h"
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
// From this size on, members of one host combine before they send to other hosts.
constexpr size_t kMinTwoLevels = size_t{128} << 10;
// Between hosts, the members of a host exchange one chunk each while they combine another.
constexpr size_t kChunk = size_t{1} << 20;

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
  if (ready.ok()) {
    division_ = Divide();
    LaneOwner* const owner = this;
    for (size_t number = 0; number < division_.lanes.size(); ++number) {
      lanes_.emplace_back(owner, division_, number, rank_, /*gathers=*/!scatters_ && !whole_);
    }
    for (LaneReduction& lane : lanes_) lane.Start();
  }
  End(ready);
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
  // The others may still read the input, which the output may share.
  if (whole_) result_ = tf::Tensor(input_.dtype(), input_.shape());
  return absl::OkStatus();
}

// All members divide alike.
collectives::Division DirectReduce::Divide() const {
  const size_t bytes = input_.TotalBytes();
  const auto members = static_cast<size_t>(size_);
  if (whole_) return collectives::DivideNothing(members, bytes);
  std::vector<std::vector<int>> hosts = HostsOf(context_->col_params->group);
  const size_t chunk = hosts.size() > 1 ? kChunk : bytes;
  if (hosts.size() == 1 || bytes < kMinTwoLevels) hosts = collectives::OneLevel(members);
  return scatters_ ? collectives::DivideReduceScatter(std::move(hosts), output_.TotalBytes())
                   : collectives::DivideAllReduce(std::move(hosts), bytes, chunk);
}

tf::Tensor DirectReduce::Contribution(const collectives::Round& range) const {
  return SliceOf(input_, range);
}

tf::Tensor DirectReduce::Result(const collectives::Round& range) const {
  if (whole_) return result_;
  if (!scatters_) return SliceOf(output_, range);
  const bool own = range.begin == static_cast<size_t>(rank_) * output_.TotalBytes();
  return own ? output_ : tf::Tensor();
}

tf::Tensor DirectReduce::Scratch(const collectives::Round& range) {
  const auto elements = static_cast<int64_t>(range.length / collectives::SizeOf(dtype_));
  tf::Tensor scratch(context_->device->GetAllocator(tf::AllocatorAttributes()), input_.dtype(),
                     tf::TensorShape({elements}));
  if (!scratch.IsInitialized()) {
    Fail(absl::ResourceExhaustedError("no memory for a part of a reduction"));
  }
  return scratch;
}

CollectiveTransferArgs DirectReduce::ArgsFor(const std::string& name, int from, int to,
                                             tf::StatusCallback done) {
  const tf::CollGroupMember& peer = context_->col_params->group.members[from == rank_ ? to : from];
  {
    std::lock_guard<std::mutex> lock(mu_);
    tasks_.insert(peer.task);
  }
  CollectiveTransferArgs args;
  args.peer_device = peer.device.name();
  args.peer_task = peer.task;
  args.key =
      context_->exec_key + ":" + name + ":" + std::to_string(from) + ":" + std::to_string(to);
  args.device = context_->device;
  args.context = context_->op_ctx->op_device_context();
  args.attributes = context_->op_ctx->output_alloc_attr(0);
  args.locality = peer.device.locality();
  args.cancellation = context_->op_ctx->cancellation_manager();
  args.done = std::move(done);
  return args;
}

void DirectReduce::Post(const std::string& name, int to, const tf::Tensor& tensor) {
  ++pending_;
  const CollectiveTransferArgs args =
      ArgsFor(name, rank_, to, [this](const absl::Status& status) { End(status); });
  access_->PostToPeer(args.peer_device, args.peer_task, args.key, args.device, args.context,
                      args.attributes, &tensor, args.locality, args.cancellation, args.done);
}

tf::StatusCallback DirectReduce::EndThen(Arrived arrived) {
  ++pending_;
  return [this, arrived = std::move(arrived)](const absl::Status& status) {
    if (status.ok() && !Failed()) arrived();
    End(status);
  };
}

void DirectReduce::Fetch(const std::string& name, int from, tf::Tensor* tensor, Arrived arrived) {
  const CollectiveTransferArgs args = ArgsFor(name, from, rank_, EndThen(std::move(arrived)));
  access_->RecvFromPeer(args.peer_device, args.peer_task, /*peer_is_local=*/false, args.key,
                        args.device, args.context, args.attributes, tensor, args.locality,
                        args.stream, args.cancellation, args.done);
}

std::shared_ptr<CollectiveFetch> DirectReduce::FetchInPlace(const std::string& name, int from,
                                                            uint64_t bytes, Arrived arrived) {
  return access_->FetchInPlace(ArgsFor(name, from, rank_, EndThen(std::move(arrived))), bytes);
}

bool DirectReduce::Combine(const std::vector<const char*>& sources, bool last, tf::Tensor* result) {
  if (result->TotalBytes() > kLongWork) Poller::LongWorkAhead();
  collectives::Reduce(dtype_, op_, sources, static_cast<size_t>(result->NumElements()),
                      DataOf(*result), nullptr, collectives::Subnormals::kFlushed);
  const absl::Status status = last ? Finalize(result) : absl::OkStatus();
  if (!status.ok()) Fail(status);
  return status.ok();
}

// As TensorFlow's ring does.
absl::Status DirectReduce::Finalize(tf::Tensor* result) {
  tf::OpKernel* final_op = context_->col_params->final_op;
  if (final_op == nullptr) return absl::OkStatus();
  const FloatMode mode(/*flush=*/true);  // this may be any thread
  tf::Tensor one(result->dtype(), tf::TensorShape({1}));
  const std::unique_ptr<tf::CollectiveAdapter> adapter(tf::MakeCollectiveAdapter(
      &one, 1, context_->device->GetAllocator(tf::AllocatorAttributes())));
  tf::Tensor members = adapter->Scalar(size_);
  return tf::collective_util::ComputeBinOp(context_->op_ctx, context_->op_params, context_->device,
                                           final_op, result, &members);
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

void DirectReduce::Report() {
  std::set<std::string> transports;
  for (const std::string& task : tasks_) transports.insert(access_->TransportTo(task));
  const std::string text = absl::StrJoin(transports, ", ");
  GlobalCounters().direct_reductions.Add(text);
  const tf::CollGroupParams& group = context_->col_params->group;
  static auto* mu = new std::mutex;
  static auto* reported = new std::map<std::pair<std::string, int>, std::string>;
  {
    std::lock_guard<std::mutex> lock(*mu);
    std::string& last = (*reported)[{group.members[rank_].task, group.group_key}];
    if (std::exchange(last, text) == text) return;
  }
  const size_t hosts = HostsOf(group).size();
  Log(LogLevel::kInfo, "reductions of group " + std::to_string(group.group_key) + ": direct (" +
                           (hosts == 1 ? "same host" : std::to_string(hosts) + " hosts") +
                           ") over " + text);
}

// No transfer is left, so nothing else runs here.
void DirectReduce::Finish() {
  lanes_.clear();
  if (status_.ok() && !tasks_.empty()) Report();
  if (status_.ok() && whole_) {
    std::memcpy(DataOf(output_), DataOf(result_), result_.TotalBytes());
  }
  // What follows may write into a tensor with one reference.
  input_ = output_ = result_ = tf::Tensor();
  const tf::StatusCallback done = std::move(done_);
  done(status_);  // may destroy this object
}

}  // namespace rdma_transport
