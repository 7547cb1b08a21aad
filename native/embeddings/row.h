// Rows of a table, as they lie in the memory of their owner:
//
//   seal, 8 bytes | weights | zeros up to a multiple of 8 bytes
//
// The seal is a hash of the weights and of the row's number. A fabric may read a row while its
// owner writes it, and promises no order of the bytes within a read. So a reader computes the hash
// of what it got. If that is the seal, these are weights that the owner stored together, and
// otherwise it reads again. By chance the hash of a mixture is the seal in one of 2^64 cases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rdma_transport::embeddings {

constexpr size_t kSealBytes = 8;

constexpr size_t RowWords(size_t bytes) { return (bytes + 7) / 8; }
// The bytes from one row to the next.
constexpr size_t RowStride(size_t bytes) { return kSealBytes + 8 * RowWords(bytes); }

// Four chains of multiplications, because one would be bound by their latency.
class RowHash {
 public:
  explicit RowHash(uint64_t row) {
    for (uint64_t lane = 0; lane < 4; ++lane) lanes_[lane] = (row + 1) * kPrime + lane;
  }
  void Add(size_t lane, uint64_t word) { lanes_[lane] = Turn((lanes_[lane] ^ word) * kPrime, 29); }
  uint64_t Result() const {
    uint64_t all = lanes_[0];
    for (size_t lane = 1; lane < 4; ++lane) all = Turn((all ^ lanes_[lane]) * kPrime, 29);
    return all ^ (all >> 32);
  }

 private:
  static constexpr uint64_t kPrime = 0x9E3779B185EBCA87;
  static uint64_t Turn(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

  uint64_t lanes_[4];
};

// Stores weights of `bytes` at `place`, which is aligned to 8 bytes. Other threads and processes
// may load it meanwhile.
inline void StoreRow(char* place, uint64_t row, const char* weights, size_t bytes) {
  auto* const words = reinterpret_cast<uint64_t*>(place);
  const size_t count = RowWords(bytes);
  RowHash hash(row);
  for (size_t i = 0; i < count; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, weights + 8 * i, i + 1 < count ? 8 : bytes - 8 * i);
    hash.Add(i % 4, word);
    __atomic_store_n(words + 1 + i, word, __ATOMIC_RELAXED);
  }
  __atomic_store_n(words, hash.Result(), __ATOMIC_RELEASE);
}

// Loads the weights. Returns false if they do not fit the seal; they are undefined then.
inline bool LoadRow(const char* place, uint64_t row, char* weights, size_t bytes) {
  const auto* const words = reinterpret_cast<const uint64_t*>(place);
  const uint64_t seal = __atomic_load_n(words, __ATOMIC_ACQUIRE);
  const size_t count = RowWords(bytes);
  RowHash hash(row);
  const auto load = [&](size_t i, size_t lane, size_t length) {
    const uint64_t word = __atomic_load_n(words + 1 + i, __ATOMIC_RELAXED);
    hash.Add(lane, word);
    std::memcpy(weights + 8 * i, &word, length);
  };
  size_t i = 0;
  for (; i + 4 < count; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) load(i + lane, lane, 8);
  }
  for (; i + 1 < count; ++i) load(i, i % 4, 8);
  load(i, i % 4, bytes - 8 * i);
  return hash.Result() == seal;
}

}  // namespace rdma_transport::embeddings
