// Copies of small tensors that TensorFlow's event manager, which polls, does not wait for.
#pragma once

#include <functional>

#include "plugin/device_stream.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// A stream of a device beside the one on which it computes, the compute stream. Host callbacks on
// it hold up no kernel. Thread-safe. Lives as long as the process, as TensorFlow's own streams do.
class SideStream {
 public:
  using Callback = std::function<void(const absl::Status&)>;

  // Returns null if the device has no stream that can be used so.
  static SideStream* Of(const tensorflow::Device& device, tensorflow::DeviceContext* context);

  SideStream(Stream* compute, Stream* side) : compute_(compute), side_(side) {}

  // Both copy a tensor into one of the same size when the device has done what was enqueued on its
  // compute stream. `then` is called once, when the tensor is copied, unless an error is returned:
  // on one thread for all devices, which it must not hold up. The tensors on the host, and `from`,
  // must live until then. If the device is in error, TensorFlow's event manager learns of it, and
  // ends the process.
  absl::Status CopyToHost(tensorflow::DeviceContext* context, tensorflow::Device* device,
                          const tensorflow::Tensor& from, const tensorflow::Tensor& to,
                          Callback then);
  // All that is enqueued on the compute stream afterwards comes after the copy.
  absl::Status CopyToDevice(tensorflow::DeviceContext* context, tensorflow::Device* device,
                            const tensorflow::Tensor& from, const tensorflow::Tensor& to,
                            Callback then);

 private:
  class Thread;
  struct Wait;

  absl::Status CallBack(tensorflow::DeviceContext* context, tensorflow::Device* device,
                        Callback then);

  Stream* const compute_;
  Stream* const side_;
};

}  // namespace rdma_transport
