// Bytes that are recognized wherever they arrive: patterns without repetitions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace rdma_transport::fabric {

// Returns eight bytes of a pattern. Other words and other patterns differ (splitmix64).
inline uint64_t PatternWord(uint64_t pattern, uint64_t index) {
  uint64_t word = (pattern + index) * 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

// Fills with the pattern, or with its complement in the bits `flipped` to detect unwritten bytes.
inline void FillPattern(char* place, uint64_t bytes, uint64_t pattern, uint64_t flipped = 0) {
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = PatternWord(pattern, at / sizeof(word)) ^ flipped;
    std::memcpy(place + at, &word, std::min(bytes - at, uint64_t{sizeof(word)}));
  }
}

// Counts the bytes that differ from the pattern, of those from `begin`, a multiple of 8, to `end`.
inline uint64_t DifferingBytes(const char* place, uint64_t begin, uint64_t end, uint64_t pattern) {
  uint64_t differing = 0;
  for (uint64_t at = begin; at < end; at += sizeof(uint64_t)) {
    const uint64_t length = std::min(end - at, uint64_t{sizeof(uint64_t)});
    const uint64_t word = PatternWord(pattern, at / sizeof(word));
    if (std::memcmp(place + at, &word, length) == 0) continue;
    const char* const right = reinterpret_cast<const char*>(&word);
    for (uint64_t i = 0; i < length; ++i) differing += place[at + i] != right[i];
  }
  return differing;
}

}  // namespace rdma_transport::fabric
