// Checksums: of bytes, and of tensors that change on their way.
#include "base/checksum.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "protocol/integrity.h"
#include "protocol_fixture.h"

namespace rdma_transport {
namespace {

using testing::Eventually;
using testing::OnShm;
using testing::Payload;
using testing::ProtocolTest;
using testing::Task;
using testing::Tensor;

std::string RandomText(std::mt19937* random, size_t length) {
  std::string text(length, '\0');
  for (char& byte : text) byte = static_cast<char>((*random)());
  return text;
}

TEST(Checksum, IsTheSameOnEveryProcessor) {
  std::mt19937 random(1);
  for (size_t length = 0; length < 200; ++length) {
    const std::string text = RandomText(&random, length);
    EXPECT_EQ(ChecksumOf(text.data(), length), ChecksumByTable(text.data(), length)) << length;
  }
  // So that another version still means the same.
  const std::string known = "one-sided tensor transport";
  EXPECT_EQ(ChecksumOf(known.data(), known.size()), 4080242226u);
}

TEST(Checksum, FindsEachChangedBit) {
  std::mt19937 random(2);
  std::string text = RandomText(&random, 101);
  const uint32_t right = ChecksumOf(text.data(), text.size());
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(ChecksumOf(text.data(), text.size()), right) << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(Checksum, FindsMissingAndSwappedBytes) {
  const std::string zeros(96, '\0');
  std::set<uint32_t> sums;
  for (size_t length = 0; length <= zeros.size(); ++length) {
    sums.insert(ChecksumOf(zeros.data(), length));
  }
  EXPECT_EQ(sums.size(), zeros.size() + 1);
  std::string words(48, 'a');
  words.replace(8, 8, "bbbbbbbb");
  std::string swapped(48, 'a');
  swapped.replace(16, 8, "bbbbbbbb");  // another lane
  EXPECT_NE(ChecksumOf(words.data(), 48), ChecksumOf(swapped.data(), 48));
  swapped = std::string(48, 'a').replace(32, 8, "bbbbbbbb");  // the same lane
  EXPECT_NE(ChecksumOf(words.data(), 48), ChecksumOf(swapped.data(), 48));
}

Settings Checking() {
  Settings settings = testing::TestSettings();
  settings.checksum = true;
  return settings;
}

class ChecksumTest : public ProtocolTest {
 protected:
  static constexpr size_t kLength = 100'000;
  const std::vector<int64_t> dims_ = {kLength};

  uint64_t Found() const {
    const auto errors = GlobalCounters().errors.Get();
    const auto found = errors.find("checksum");
    return found == errors.end() ? 0 : found->second;
  }
  static bool IsStatic(const Delivery& delivery) { return delivery.mode == Mode::kStatic; }
};

TEST_F(ChecksumTest, WhatArrivesAsItWasSentPasses) {
  for (const bool sender : {false, true}) {
    // Who sends decides; who receives looks at what comes with a checksum.
    Task a("a", sender ? Checking() : testing::TestSettings());
    Task b("b", sender ? testing::TestSettings() : Checking());
    std::set<Mode> modes;
    for (int step = 1; step < 8; ++step) {
      for (const size_t length : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, kLength}) {
        const std::string key = "k" + std::to_string(length) + (step % 2 == 0 ? ";0:0" : ";loop:3");
        const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
        ASSERT_TRUE(Send(a, b, Tensor(step, key, Bytes(length, step, &a.arena()), dims)).ok());
        const Delivery delivery = Receive(b, a, step, key)->Get();
        ASSERT_TRUE(delivery.status.ok()) << delivery.status.message();
        EXPECT_TRUE(Payload::Matches(delivery.data, length, step));
        EXPECT_EQ(delivery.checked, sender && length > 0);
        modes.insert(delivery.mode);
      }
    }
    EXPECT_EQ(modes.size(), 3u);
  }
}

TEST_F(ChecksumTest, WhatChangesBeforeItIsReadIsAnError) {
  Task a("a", Checking()), b("b");
  const auto payload = Bytes(kLength, 1, &a.arena());
  ASSERT_TRUE(Send(a, b, Tensor(1, "k;0:0", payload, dims_)).ok());
  ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
  payload->data()[kLength / 2] ^= 4;
  const uint64_t before = Found();
  const Delivery delivery = Receive(b, a, 1, "k;0:0")->Get();
  EXPECT_EQ(delivery.status.code(), Code::kDataLoss);
  EXPECT_NE(delivery.status.message().find("of peer a (100000 bytes, dynamic)"), std::string::npos)
      << delivery.status.message();
  EXPECT_EQ(Found(), before + 1);
  // Only that tensor is refused.
  ASSERT_TRUE(Send(a, b, Tensor(2, "k;0:0", Bytes(kLength, 2, &a.arena()), dims_)).ok());
  EXPECT_TRUE(Receive(b, a, 2, "k;0:0")->Get().status.ok());
}

TEST_F(ChecksumTest, WhatChangesInASlotIsAnError) {
  Task a("a", Checking()), b("b");
  std::set<const char*> slots;  // those seen so far
  bool refused = false;
  for (int step = 1; step < 200 && !refused; ++step) {
    const auto payload = Bytes(kLength, step, &a.arena());
    ASSERT_TRUE(Send(a, b, Tensor(step, "k;0:0", payload, dims_)).ok());
    ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
    const uint64_t hits = GlobalCounters().plan.hits.load();
    if (OnShm()) {
      if (hits > 0) payload->data()[kLength - 1] ^= 1;
    } else {
      for (const char* slot : slots) const_cast<char*>(slot)[kLength - 1] ^= 1;
    }
    const Delivery delivery = Receive(b, a, step, "k;0:0")->Get();
    if (delivery.status.ok()) {
      if (!OnShm() && IsStatic(delivery)) slots.insert(delivery.data);
      continue;
    }
    EXPECT_EQ(delivery.status.code(), Code::kDataLoss);
    refused = IsStatic(delivery);
  }
  EXPECT_TRUE(refused);
}

TEST_F(ChecksumTest, WhatIsOverwrittenAllTheTimeIsCheckedAsItWasSent) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TensorFlow's kernels race with the copy, and so does this test";
#endif
  for (const bool zero_copy : {true, false}) {
    Settings settings = Checking();
    settings.zero_copy = zero_copy;
    Task a("a", settings), b("b", settings);
    for (const size_t length : {size_t{4000}, kLength}) {
      const auto payload = Bytes(length, 1, &a.arena());
      auto* words = reinterpret_cast<std::atomic<uint64_t>*>(payload->data());
      std::atomic<bool> stop{false};
      std::thread writer([&] {
        for (uint64_t i = 0; !stop.load(); ++i) words[i % (length / 8)].store(i);
      });
      const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
      for (int step = 1; step < 100; ++step) {
        Outgoing tensor = Tensor(step, "k;0:0", payload, dims);
        tensor.mutable_source = true;
        EXPECT_TRUE(Send(a, b, std::move(tensor)).ok());
        const Delivery delivery = Receive(b, a, step, "k;0:0")->Get();
        EXPECT_TRUE(delivery.status.ok()) << delivery.status.message();
      }
      stop.store(true);
      writer.join();
    }
  }
}

TEST(Integrity, OfWhatCameWithoutAChecksumNothingIsSaid) {
  Delivery delivery;
  delivery.data = "abc";
  delivery.bytes = 3;
  Verify("a", &delivery);
  EXPECT_TRUE(delivery.status.ok());
  delivery.checked = true;
  Verify("a", &delivery);
  EXPECT_EQ(delivery.status.code(), Code::kDataLoss);
  // An error that was there before stays.
  delivery.status = Status(Code::kUnavailable, "lost");
  Verify("a", &delivery);
  EXPECT_EQ(delivery.status.code(), Code::kUnavailable);
}

}  // namespace
}  // namespace rdma_transport
