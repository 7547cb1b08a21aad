// Optimizers of single rows. The formulas are those of Keras for dense gradients, applied to the
// rows that have gradients only: the moments of other rows stay as they are, as in "lazy" variants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdma_transport::embeddings {

enum class ElementType : uint8_t { kFloat32 = 0, kFloat64 };
constexpr size_t SizeOf(ElementType type) { return type == ElementType::kFloat64 ? 8 : 4; }

enum class OptimizerKind : uint8_t { kSgd = 0, kAdagrad, kAdam, kFtrl };

struct Optimizer {
  OptimizerKind kind = OptimizerKind::kSgd;
  double learning_rate = 0.01;
  double epsilon = 1e-7;             // kAdagrad, kAdam
  double initial_accumulator = 0.1;  // kAdagrad, kFtrl
  double beta_1 = 0.9;               // kAdam
  double beta_2 = 0.999;
  double l1 = 0;  // kFtrl
  double l2 = 0;
};

// How many values an optimizer keeps for each weight, in arrays of a row's length.
constexpr size_t SlotsOf(OptimizerKind kind) {
  if (kind == OptimizerKind::kSgd) return 0;
  return kind == OptimizerKind::kAdagrad ? 1 : 2;
}
// What all values of a slot are at first.
double InitialSlot(const Optimizer& optimizer, size_t slot);

// Updates `count` weights by their gradients, which are multiplied by `scale` before. `slots`: one
// array after the other. `step` counts the updates of the table from 1. The arrays are of one type,
// aligned for it.
void Update(const Optimizer& optimizer, uint64_t step, ElementType type, double scale, size_t count,
            const char* gradients, char* weights, char* slots);

// Adds `count` elements to those of `sum`.
void AddTo(ElementType type, size_t count, const char* values, char* sum);

}  // namespace rdma_transport::embeddings
