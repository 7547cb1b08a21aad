// Keeps an object alive whose type this layer does not know: a TensorFlow buffer, an arena block, a
// mapping. Move-only. Calls `release` once when it is reset or destroyed.
#pragma once

#include <memory>
#include <utility>

namespace rdma_transport {

// Not thread-safe.
class OwnerRef {
 public:
  using Release = void (*)(void* object);

  OwnerRef() = default;
  OwnerRef(void* object, Release release) : object_(object), release_(release) {}
  OwnerRef(OwnerRef&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)),
        release_(std::exchange(other.release_, nullptr)) {}
  OwnerRef& operator=(OwnerRef&& other) noexcept {
    if (this != &other) {
      Reset();
      object_ = std::exchange(other.object_, nullptr);
      release_ = std::exchange(other.release_, nullptr);
    }
    return *this;
  }
  ~OwnerRef() { Reset(); }

  explicit operator bool() const { return release_ != nullptr; }
  void Reset() {
    if (release_ != nullptr) release_(object_);
    object_ = nullptr;
    release_ = nullptr;
  }

  // Keeps `value` alive.
  template <typename T>
  static OwnerRef Holding(T value) {
    return OwnerRef(new T(std::move(value)), [](void* held) { delete static_cast<T*>(held); });
  }

 private:
  void* object_ = nullptr;
  Release release_ = nullptr;
};

}  // namespace rdma_transport
