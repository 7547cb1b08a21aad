#include "plugin/chunks.h"

#include <algorithm>

#include "protocol/wire.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/allocation_description.pb.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

constexpr uint64_t kChunk = uint64_t{1} << 20;

// A part of another buffer.
class ChunkBuffer final : public tf::TensorBuffer {
 public:
  ChunkBuffer(tf::TensorBuffer* whole, uint64_t offset, uint64_t bytes)
      : TensorBuffer(whole->base<char>() + offset), root_(whole->root_buffer()), bytes_(bytes) {
    root_->Ref();
  }
  ~ChunkBuffer() override { root_->Unref(); }

  size_t size() const override { return bytes_; }
  tf::TensorBuffer* root_buffer() override { return root_; }
  void FillAllocationDescription(tf::AllocationDescription* proto) const override {
    root_->FillAllocationDescription(proto);
  }

 private:
  tf::TensorBuffer* const root_;
  const uint64_t bytes_;
};

}  // namespace

int ChunksOf(uint64_t bytes) {
  return static_cast<int>(std::max<uint64_t>((bytes + kChunk - 1) / kChunk, 1));
}

uint64_t BytesOfChunk(uint64_t bytes, int number) {
  return std::min(kChunk, bytes - static_cast<uint64_t>(number) * kChunk);
}

std::string EdgeOfChunk(std::string_view edge, int number) {
  return std::string(edge) + "#" + std::to_string(number);
}

tf::Rendezvous::ParsedKey KeyOfChunk(const tf::Rendezvous::ParsedKey& key, int number) {
  const std::string_view full(key.FullKey().data(), key.FullKey().size());
  const std::string_view edge = WithoutSuffix(full);
  tf::Rendezvous::ParsedKey chunk;
  tf::Rendezvous::ParseKey(EdgeOfChunk(edge, number) + std::string(full.substr(edge.size())),
                           &chunk)
      .IgnoreError();  // the key that it was made from was valid
  return chunk;
}

tf::Tensor ChunkOf(const tf::Tensor& tensor, int number) {
  const uint64_t bytes = BytesOfChunk(tensor.TotalBytes(), number);
  auto* whole = const_cast<tf::TensorBuffer*>(tf::DMAHelper::buffer(&tensor));
  tsl::core::RefCountPtr<tf::TensorBuffer> part(
      new ChunkBuffer(whole, static_cast<uint64_t>(number) * kChunk, bytes));
  return tf::Tensor(tf::DT_UINT8, tf::TensorShape({static_cast<int64_t>(bytes)}), std::move(part));
}

}  // namespace rdma_transport
