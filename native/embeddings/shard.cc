#include "embeddings/shard.h"

#include <algorithm>
#include <utility>

namespace rdma_transport::embeddings {
namespace {

// SplitMix64, whose n-th number needs no other.
double UniformAt(uint64_t seed, uint64_t row, uint64_t column) {
  uint64_t value = seed * 0xD1B54A32D192ED03 + row * 0x9E3779B97F4A7C15 + column;
  for (int i = 0; i < 2; ++i) {
    value += 0x9E3779B97F4A7C15;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
    value = (value ^ value >> 27) * 0x94D049BB133111EB;
    value ^= value >> 31;
  }
  return static_cast<double>(value >> 11) * 0x1p-53;
}

template <typename T>
void DrawRow(double low, double high, uint64_t seed, uint64_t row, size_t dim, char* out) {
  for (size_t column = 0; column < dim; ++column) {
    const double drawn = low + (high - low) * UniformAt(seed, row, column);
    reinterpret_cast<T*>(out)[column] = static_cast<T>(drawn);
  }
}

template <typename T>
void FillSlots(const Optimizer& optimizer, size_t dim, char* slots) {
  for (size_t slot = 0; slot < SlotsOf(optimizer.kind); ++slot) {
    T* const begin = reinterpret_cast<T*>(slots) + slot * dim;
    std::fill(begin, begin + dim, static_cast<T>(InitialSlot(optimizer, slot)));
  }
}

// A row of weights, aligned for all types.
std::vector<double> Scratch(const Layout& layout) {
  return std::vector<double>(RowWords(layout.row_bytes()));
}

}  // namespace

Shard::Shard(std::shared_ptr<fabric::Device> device, const Layout& layout,
             const Optimizer& optimizer)
    : device_(std::move(device)),
      layout_(layout),
      rows_(layout.RowsOf(layout.rank)),
      slot_bytes_(SlotsOf(optimizer.kind) * layout.row_bytes()),
      optimizer_(optimizer) {}

Status Shard::Open(std::shared_ptr<fabric::Device> device, const Layout& layout,
                   const Optimizer& optimizer, std::unique_ptr<Shard>* shard) {
  fabric::Device* const opened = device.get();
  std::unique_ptr<Shard> made(new Shard(std::move(device), layout, optimizer));
  const size_t granule = opened->RegionGranule();
  const size_t bytes = std::max<size_t>(made->rows_ * layout.stride(), 1);
  RDMA_RETURN_IF_ERROR(opened->Allocate((bytes + granule - 1) / granule * granule,
                                        fabric::Access::kRemoteRead, nullptr, &made->region_));
  const size_t slot_bytes = made->rows_ * made->slot_bytes_;
  if (slot_bytes > 0) {
    made->slots_.reset(static_cast<char*>(std::calloc(slot_bytes, 1)));
    if (made->slots_ == nullptr) {
      return Status(Code::kResourceExhausted, "there is no memory for " +
                                                  std::to_string(slot_bytes) +
                                                  " bytes of the optimizer's slots");
    }
  }
  const std::vector<double> zeros = Scratch(layout);
  for (uint64_t row = 0; row < made->rows_; ++row) {
    made->Store(row, 1, reinterpret_cast<const char*>(zeros.data()), nullptr);
    if (InitialSlot(optimizer, 0) == 0 || slot_bytes == 0) continue;
    layout.type == ElementType::kFloat32
        ? FillSlots<float>(optimizer, layout.dim, made->Slots(row))
        : FillSlots<double>(optimizer, layout.dim, made->Slots(row));
  }
  *shard = std::move(made);
  return OkStatus();
}

void Shard::Store(uint64_t first, uint64_t count, const char* weights, const char* slots) {
  std::lock_guard<std::mutex> lock(mu_);
  const size_t bytes = layout_.row_bytes();
  for (uint64_t i = 0; i < count; ++i) {
    StoreRow(Place(first + i), Global(first + i), weights + i * bytes, bytes);
  }
  if (slots != nullptr && slots_ != nullptr) {
    std::memcpy(Slots(first), slots, count * slot_bytes_);
  }
}

void Shard::Load(uint64_t first, uint64_t count, char* weights, char* slots) const {
  std::lock_guard<std::mutex> lock(mu_);
  const size_t bytes = layout_.row_bytes();
  for (uint64_t i = 0; i < count && weights != nullptr; ++i) {
    LoadRow(Place(first + i), Global(first + i), weights + i * bytes, bytes);
  }
  if (slots != nullptr && slots_ != nullptr) {
    std::memcpy(slots, Slots(first), count * slot_bytes_);
  }
}

void Shard::Draw(double low, double high, uint64_t seed) {
  std::vector<double> row = Scratch(layout_);
  char* const drawn = reinterpret_cast<char*>(row.data());
  for (uint64_t i = 0; i < rows_; ++i) {
    layout_.type == ElementType::kFloat32
        ? DrawRow<float>(low, high, seed, Global(i), layout_.dim, drawn)
        : DrawRow<double>(low, high, seed, Global(i), layout_.dim, drawn);
    Store(i, 1, drawn, nullptr);
  }
}

void Shard::Update(const std::vector<uint64_t>& rows, const char* gradients, double scale) {
  std::lock_guard<std::mutex> lock(mu_);
  ++steps_;
  const size_t bytes = layout_.row_bytes();
  std::vector<double> scratch = Scratch(layout_);
  char* const weights = reinterpret_cast<char*>(scratch.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint64_t row = rows[i];
    LoadRow(Place(row), Global(row), weights, bytes);
    char* const slots = slots_ == nullptr ? nullptr : Slots(row);
    embeddings::Update(optimizer_, steps_, layout_.type, scale, layout_.dim, gradients + i * bytes,
                       weights, slots);
    StoreRow(Place(row), Global(row), weights, bytes);
  }
}

void Shard::SetLearningRate(double rate) {
  std::lock_guard<std::mutex> lock(mu_);
  optimizer_.learning_rate = rate;
}

uint64_t Shard::steps() const {
  std::lock_guard<std::mutex> lock(mu_);
  return steps_;
}

void Shard::SetSteps(uint64_t steps) {
  std::lock_guard<std::mutex> lock(mu_);
  steps_ = steps;
}

}  // namespace rdma_transport::embeddings
