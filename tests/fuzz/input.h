// A fuzzer's input, taken from the front. What is missing at the end reads as zeros, so that every
// input means something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rdma_transport::fuzz {

// Ends the process, which is what a fuzzer looks for.
inline void Require(bool condition) {
  if (!condition) std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }

  template <typename T>
  T Take() {
    T value{};
    const size_t length = std::min(sizeof(value), left_);
    if (length > 0) std::memcpy(&value, data_, length);
    Skip(length);
    return value;
  }
  // Less than `bound`, which is at most 256.
  size_t Below(size_t bound) { return Take<uint8_t>() % bound; }
  bool Flag() { return (Take<uint8_t>() & 1) != 0; }

  // Mostly a small number; now and then any.
  uint64_t Number() {
    const auto small = Take<uint8_t>();
    return small < 0xf0 ? small : Take<uint64_t>();
  }

  // Fewer than `length` at the end of the input.
  std::string Bytes(size_t length) {
    const size_t taken = std::min(length, left_);
    std::string bytes(reinterpret_cast<const char*>(data_), taken);
    Skip(taken);
    return bytes;
  }

 private:
  void Skip(size_t length) {
    data_ += length;
    left_ -= length;
  }

  const uint8_t* data_;
  size_t left_;
};

}  // namespace rdma_transport::fuzz
