// Rows that are stored and loaded at once.
#include "embeddings/row.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace rdma_transport::embeddings {
namespace {

// A row alone in its memory.
struct Place {
  explicit Place(size_t bytes) : words(RowStride(bytes) / 8) {}
  char* data() { return reinterpret_cast<char*>(words.data()); }
  std::vector<uint64_t> words;
};

std::vector<char> Weights(size_t bytes, int seed) {
  std::vector<char> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<char>(i * 7 + i / 97 + seed);
  return made;
}

TEST(RowTest, WhatIsStoredIsLoaded) {
  for (size_t bytes = 1; bytes < 200; ++bytes) {
    Place place(bytes);
    const std::vector<char> stored = Weights(bytes, 3);
    StoreRow(place.data(), bytes, stored.data(), bytes);
    std::vector<char> loaded(bytes + 1, 'x');
    ASSERT_TRUE(LoadRow(place.data(), bytes, loaded.data(), bytes)) << bytes;
    EXPECT_EQ(loaded[bytes], 'x');
    loaded.pop_back();
    EXPECT_EQ(loaded, stored);
  }
}

TEST(RowTest, OneFlippedBitDoesNotFit) {
  for (const size_t bytes : {4, 64, 260}) {
    Place place(bytes);
    StoreRow(place.data(), 0, Weights(bytes, 1).data(), bytes);
    std::vector<char> loaded(bytes);
    for (size_t bit = 0; bit < 8 * (kSealBytes + bytes); ++bit) {
      place.data()[bit / 8] ^= static_cast<char>(1 << bit % 8);
      EXPECT_FALSE(LoadRow(place.data(), 0, loaded.data(), bytes)) << bit;
      place.data()[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
    EXPECT_TRUE(LoadRow(place.data(), 0, loaded.data(), bytes));
  }
}

// Signs of two weights in one of the hash's chains, which a chain without turns would not see.
TEST(RowTest, TwoFlippedSignsDoNotFit) {
  const size_t bytes = 128;
  Place place(bytes);
  StoreRow(place.data(), 0, Weights(bytes, 1).data(), bytes);
  std::vector<char> loaded(bytes);
  place.words[1] ^= uint64_t{1} << 63;
  place.words[5] ^= uint64_t{1} << 63;
  EXPECT_FALSE(LoadRow(place.data(), 0, loaded.data(), bytes));
}

TEST(RowTest, NeitherEmptyMemoryNorAnotherRowFits) {
  const size_t bytes = 32;
  Place place(bytes);
  std::vector<char> loaded(bytes);
  for (uint64_t row = 0; row < 1000; ++row) {
    EXPECT_FALSE(LoadRow(place.data(), row, loaded.data(), bytes));
  }
  StoreRow(place.data(), 7, Weights(bytes, 1).data(), bytes);
  EXPECT_FALSE(LoadRow(place.data(), 8, loaded.data(), bytes));
}

// Each mixture of two rows, by words, as a fabric may read it.
TEST(RowTest, MixturesDoNotFit) {
  const size_t bytes = 72;
  Place one(bytes);
  Place other(bytes);
  StoreRow(one.data(), 5, Weights(bytes, 1).data(), bytes);
  StoreRow(other.data(), 5, Weights(bytes, 2).data(), bytes);
  std::vector<char> loaded(bytes);
  const uint64_t all = (uint64_t{1} << one.words.size()) - 1;
  for (uint64_t mask = 0; mask <= all; ++mask) {
    Place mixed(bytes);
    for (size_t i = 0; i < mixed.words.size(); ++i) {
      mixed.words[i] = (mask >> i & 1) != 0 ? one.words[i] : other.words[i];
    }
    const bool whole = mask == 0 || mask == all;
    EXPECT_EQ(LoadRow(mixed.data(), 5, loaded.data(), bytes), whole) << mask;
  }
}

TEST(RowTest, ReadersSeeWholeRowsBesideAWriter) {
  const size_t bytes = 400;
  Place place(bytes);
  std::vector<char> stored(bytes, 0);
  StoreRow(place.data(), 1, stored.data(), bytes);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (char value = 1; !stop; ++value) {
      std::fill(stored.begin(), stored.end(), value);
      StoreRow(place.data(), 1, stored.data(), bytes);
    }
  });
  std::vector<char> loaded(bytes);
  int whole = 0;
  for (int i = 0; i < 20'000 || whole < 100; ++i) {
    if (!LoadRow(place.data(), 1, loaded.data(), bytes)) continue;
    ++whole;
    ASSERT_EQ(loaded, std::vector<char>(bytes, loaded[0]));
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace rdma_transport::embeddings
