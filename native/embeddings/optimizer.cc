#include "embeddings/optimizer.h"

#include <algorithm>
#include <cmath>

namespace rdma_transport::embeddings {
namespace {

// One type for all loops. They are compiled to be vectorized.
template <typename T>
struct Rows {
  size_t count;
  T scale;
  const T* __restrict__ gradients;
  T* __restrict__ weights;
  T* __restrict__ slots;

  void Sgd(T rate) {
    for (size_t i = 0; i < count; ++i) weights[i] -= rate * (gradients[i] * scale);
  }

  void Adagrad(T rate, T epsilon) {
    for (size_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] * scale;
      slots[i] += gradient * gradient;
      weights[i] -= rate * gradient / std::sqrt(slots[i] + epsilon);
    }
  }

  void Adam(T rate, T beta_1, T beta_2, T epsilon) {
    T* __restrict__ const second = slots + count;
    for (size_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] * scale;
      slots[i] += (gradient - slots[i]) * (1 - beta_1);
      second[i] += (gradient * gradient - second[i]) * (1 - beta_2);
      weights[i] -= slots[i] * rate / (std::sqrt(second[i]) + epsilon);
    }
  }

  void Ftrl(T rate, T l1, T l2) {
    T* __restrict__ const linear = slots + count;
    for (size_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] * scale;
      const T sum = slots[i] + gradient * gradient;
      linear[i] += gradient - (std::sqrt(sum) - std::sqrt(slots[i])) / rate * weights[i];
      const T clipped = std::min(std::max(linear[i], -l1), l1);
      weights[i] = (clipped - linear[i]) / (std::sqrt(sum) / rate + 2 * l2);
      slots[i] = sum;
    }
  }
};

template <typename T>
void UpdateTyped(const Optimizer& optimizer, uint64_t step, Rows<T> rows) {
  const double rate = optimizer.learning_rate;
  switch (optimizer.kind) {
    case OptimizerKind::kSgd:
      return rows.Sgd(static_cast<T>(rate));
    case OptimizerKind::kAdagrad:
      return rows.Adagrad(static_cast<T>(rate), static_cast<T>(optimizer.epsilon));
    case OptimizerKind::kAdam: {
      const auto steps = static_cast<double>(step);
      const double corrected = rate * std::sqrt(1 - std::pow(optimizer.beta_2, steps)) /
                               (1 - std::pow(optimizer.beta_1, steps));
      return rows.Adam(static_cast<T>(corrected), static_cast<T>(optimizer.beta_1),
                       static_cast<T>(optimizer.beta_2), static_cast<T>(optimizer.epsilon));
    }
    case OptimizerKind::kFtrl:
      return rows.Ftrl(static_cast<T>(rate), static_cast<T>(optimizer.l1),
                       static_cast<T>(optimizer.l2));
  }
}

template <typename T>
Rows<T> Typed(double scale, size_t count, const char* gradients, char* weights, char* slots) {
  return {count, static_cast<T>(scale), reinterpret_cast<const T*>(gradients),
          reinterpret_cast<T*>(weights), reinterpret_cast<T*>(slots)};
}

template <typename T>
void AddTyped(size_t count, const T* __restrict__ values, T* __restrict__ sum) {
  for (size_t i = 0; i < count; ++i) sum[i] += values[i];
}

}  // namespace

double InitialSlot(const Optimizer& optimizer, size_t slot) {
  const bool accumulates =
      optimizer.kind == OptimizerKind::kAdagrad || optimizer.kind == OptimizerKind::kFtrl;
  return accumulates && slot == 0 ? optimizer.initial_accumulator : 0;
}

void Update(const Optimizer& optimizer, uint64_t step, ElementType type, double scale, size_t count,
            const char* gradients, char* weights, char* slots) {
  if (type == ElementType::kFloat32) {
    UpdateTyped(optimizer, step, Typed<float>(scale, count, gradients, weights, slots));
  } else {
    UpdateTyped(optimizer, step, Typed<double>(scale, count, gradients, weights, slots));
  }
}

void AddTo(ElementType type, size_t count, const char* values, char* sum) {
  if (type == ElementType::kFloat32) {
    AddTyped(count, reinterpret_cast<const float*>(values), reinterpret_cast<float*>(sum));
  } else {
    AddTyped(count, reinterpret_cast<const double*>(values), reinterpret_cast<double*>(sum));
  }
}

}  // namespace rdma_transport::embeddings
