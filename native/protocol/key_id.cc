#include "protocol/key_id.h"

#include "base/random.h"
#include "protocol/wire.h"

namespace rdma_transport {
namespace {

struct Seeds {
  uint64_t first = Random64() | 1;
  uint64_t second = Random64() | 1;
};

const Seeds& TheSeeds() {
  static const Seeds seeds;
  return seeds;
}

uint64_t Load(const char* data, size_t length) {
  uint64_t word = 0;
  __builtin_memcpy(&word, data, length);
  return word;
}

// Multiplies to 128 bits and folds the result, so that each bit of `a` and `b` affects all of it.
uint64_t Mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t Hash(std::string_view text, uint64_t seed) {
  uint64_t state = seed ^ text.size();
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    state = Mix(state ^ Load(text.data() + at, 8), 0x9e3779b97f4a7c15 ^ (seed << 1));
    state += seed;
  }
  state = Mix(state ^ Load(text.data() + at, text.size() - at), 0xd6e8feb86659fd93 ^ seed);
  return Mix(state ^ seed, 0xa0761d6478bd642f);
}

}  // namespace

KeyId KeyId::OfEdge(std::string_view key) {
  const Seeds& seeds = TheSeeds();
  return {Hash(key, seeds.first), Hash(key, seeds.second)};
}

KeyId KeyId::WithSuffix(std::string_view suffix) const {
  const Seeds& seeds = TheSeeds();
  return {Mix(first ^ seeds.second, Hash(suffix, seeds.first) | 1),
          Mix(second ^ seeds.first, Hash(suffix, seeds.second) | 1)};
}

KeyId KeyId::Of(std::string_view key) {
  const std::string_view edge = WithoutSuffix(key);
  return OfEdge(edge).WithSuffix(key.substr(edge.size()));
}

}  // namespace rdma_transport
