#include "base/checksum.h"

#if defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <cstring>

namespace rdma_transport {
namespace {

constexpr size_t kLanes = 3;
constexpr size_t kStride = kLanes * sizeof(uint64_t);

// Adds `length` bytes, a multiple of the stride.
using AddWords = void (*)(const char* data, size_t length, uint32_t* lanes);

// The instruction that adds a word to a CRC-32C, on processors that may have it.
#if defined(__x86_64__)
#define RDMA_CRC_INSTRUCTION __attribute__((target("sse4.2")))
bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }
RDMA_CRC_INSTRUCTION inline uint64_t AddWord(uint64_t crc, uint64_t word) {
  return __builtin_ia32_crc32di(crc, word);
}
#elif defined(__aarch64__)
#define RDMA_CRC_INSTRUCTION __attribute__((target("+crc")))
bool HasInstruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
RDMA_CRC_INSTRUCTION inline uint64_t AddWord(uint64_t crc, uint64_t word) {
  return __crc32cd(static_cast<uint32_t>(crc), word);
}
#endif

// The Castagnoli polynomial, bit-reversed.
constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

void AddByTable(const char* data, size_t length, uint32_t* lanes) {
  for (size_t i = 0; i < length; ++i) {
    uint32_t& crc = lanes[i / sizeof(uint64_t) % kLanes];
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(data[i])) & 0xff];
  }
}

#ifdef RDMA_CRC_INSTRUCTION
RDMA_CRC_INSTRUCTION void AddByInstruction(const char* data, size_t length, uint32_t* lanes) {
  uint64_t crc[kLanes] = {lanes[0], lanes[1], lanes[2]};
  for (const char* end = data + length; data != end; data += kStride) {
    uint64_t words[kLanes];
    std::memcpy(words, data, kStride);
    crc[0] = AddWord(crc[0], words[0]);
    crc[1] = AddWord(crc[1], words[1]);
    crc[2] = AddWord(crc[2], words[2]);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = static_cast<uint32_t>(crc[lane]);
}
AddWords Fastest() { return HasInstruction() ? &AddByInstruction : &AddByTable; }
#else
AddWords Fastest() { return &AddByTable; }
#endif

uint32_t Sum(const char* data, size_t length, AddWords add) {
  uint32_t lanes[kLanes] = {~0u, ~0u, ~0u};
  const size_t whole = length / kStride * kStride;
  if (whole > 0) add(data, whole, lanes);
  char rest[kStride] = {};
  if (length > whole) std::memcpy(rest, data + whole, length - whole);
  add(rest, kStride, lanes);
  const uint64_t all[kLanes] = {lanes[0], uint64_t{lanes[1]} << 32 | lanes[2], length};
  char end[kStride];
  std::memcpy(end, all, kStride);
  uint32_t sum[kLanes] = {};
  add(end, kStride, sum);
  return sum[0] ^ sum[1] ^ sum[2];
}

}  // namespace

uint32_t ChecksumOf(const char* data, size_t length) {
  static const AddWords fastest = Fastest();
  return Sum(data, length, fastest);
}

uint32_t ChecksumByTable(const char* data, size_t length) { return Sum(data, length, &AddByTable); }

}  // namespace rdma_transport
