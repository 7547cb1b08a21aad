#include "plugin/device_recv.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "plugin/chunks.h"
#include "plugin/device_memory.h"
#include "plugin/direct_destination.h"
#include "plugin/recv_call.h"
#include "protocol/counters.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// One tensor on its way. It ends when its last part has been copied, or has failed.
class DeviceRecv : public std::enable_shared_from_this<DeviceRecv> {
 public:
  DeviceRecv(StepRendezvous* rendezvous, tf::Device* device, const tf::Rendezvous::ParsedKey& key,
             const tf::Rendezvous::Args& args, tf::Rendezvous::DoneCallback done)
      : rendezvous_(rendezvous),
        device_(device),
        key_(key),
        args_(args),
        in_device_(InDeviceMemory(*device, args.alloc_attrs)),
        direct_(in_device_ ? std::make_shared<DirectDestination>(device, args.device_context,
                                                                 args.alloc_attrs)
                           : nullptr),
        done_(std::move(done)) {
    on_host_ = args;
    on_host_.alloc_attrs.set_on_host(true);
    on_host_.alloc_attrs.set_gpu_compatible(true);
  }

  void Run() {
    Receive(
        key_,
        [self = shared_from_this()](const absl::Status& status, const tf::Tensor& tensor,
                                    bool dead) {
          self->dead_ = dead;
          const bool ready = dead || tensor.NumElements() == 0 || self->IsThere(tensor);
          if (!status.ok() || ready) return self->Finish(status, tensor);
          self->OnArrival(tensor);
        },
        direct_);
  }

 private:
  using OnReceived = std::function<void(const absl::Status&, const tf::Tensor&, bool dead)>;

  // Returns whether a card has read the tensor into memory of the device.
  bool IsThere(const tf::Tensor& tensor) const {
    return direct_ != nullptr && tensor.IsInitialized() &&
           direct_->Holds(tf::DMAHelper::base(&tensor));
  }

  void Receive(const tf::Rendezvous::ParsedKey& key, OnReceived received,
               std::shared_ptr<DirectDestination> direct = nullptr) {
    RecvCall::Run(std::make_shared<RecvCall>(
        rendezvous_, key, on_host_,
        [received = std::move(received)](const absl::Status& status, const tf::Rendezvous::Args&,
                                         const tf::Rendezvous::Args&, const tf::Tensor& tensor,
                                         bool dead) { received(status, tensor, dead); },
        in_device_ ? RecvCall::Use::kCopied : RecvCall::Use::kInKernels, std::move(direct)));
  }

  // With the tensor, or with its type and shape if chunks follow.
  void OnArrival(const tf::Tensor& arrived) {
    if (!in_device_ && arrived.IsInitialized()) return Finish(absl::OkStatus(), arrived);
    AllocateOnDevice(
        device_, args_.alloc_attrs, arrived.dtype(), arrived.shape(),
        [self = shared_from_this(), arrived](const absl::Status& status, const tf::Tensor& tensor) {
          if (!status.ok()) return self->Finish(status, tf::Tensor());
          self->tensor_ = tensor;
          if (!arrived.IsInitialized()) return self->ReceiveChunks();
          self->Copy(arrived, tensor);
        });
  }

  void ReceiveChunks() {
    const int chunks = ChunksOf(tensor_.TotalBytes());
    parts_ = chunks;
    for (int i = 0; i < chunks; ++i) {
      Receive(KeyOfChunk(key_, i), [self = shared_from_this(), to = ChunkOf(tensor_, i)](
                                       const absl::Status& status, const tf::Tensor& chunk, bool) {
        if (!status.ok()) return self->End(status);
        if (!chunk.IsInitialized() || chunk.dtype() != to.dtype() || chunk.shape() != to.shape()) {
          return self->End(absl::DataLossError("a chunk of another size than announced: " +
                                               std::string(self->key_.FullKey())));
        }
        self->Copy(chunk, to);
      });
    }
  }

  void Copy(const tf::Tensor& from, const tf::Tensor& to) {
    if (!in_device_) {
      tf::Tensor destination = to;
      std::memcpy(tf::DMAHelper::base(&destination), tf::DMAHelper::base(&from), from.TotalBytes());
      GlobalCounters().copied_bytes.fetch_add(from.TotalBytes(), std::memory_order_relaxed);
      return End(absl::OkStatus());
    }
    EnqueueToDevice(args_.device_context, device_, from, to,
                    [self = shared_from_this()](const absl::Status& status) { self->End(status); });
  }

  // A part has ended.
  void End(const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      status_.Update(status);
      if (--parts_ > 0) return;
    }
    Finish(status_, status_.ok() ? tensor_ : tf::Tensor());
  }

  void Finish(const absl::Status& status, const tf::Tensor& tensor) {
    const tf::Rendezvous::DoneCallback done = std::move(done_);
    done(status, tf::Rendezvous::Args(), args_, tensor, dead_);
  }

  StepRendezvous* const rendezvous_;
  tf::Device* const device_;
  const tf::Rendezvous::ParsedKey key_;
  const tf::Rendezvous::Args args_;
  const bool in_device_;
  const std::shared_ptr<DirectDestination> direct_;  // null if the tensor goes to the host's memory
  tf::Rendezvous::Args on_host_;
  tf::Rendezvous::DoneCallback done_;
  bool dead_ = false;
  tf::Tensor tensor_;  // on the device

  std::mutex mu_;
  int parts_ = 1;
  absl::Status status_;
};

}  // namespace

void RecvOnDevice(StepRendezvous* rendezvous, tf::Device* device,
                  const tf::Rendezvous::ParsedKey& key, const tf::Rendezvous::Args& args,
                  tf::Rendezvous::DoneCallback done) {
  std::make_shared<DeviceRecv>(rendezvous, device, key, args, std::move(done))->Run();
}

}  // namespace rdma_transport
