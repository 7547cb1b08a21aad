// Memory as providers register it: keys that they choose, addresses or offsets, descriptors for
// local memory, regions bound to the endpoint, and registrations that are refused.

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "libfabric_pair.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using testing::FaultyCounters;
using testing::SetFaulty;

class LibfabricMemoryTest : public testing::LibfabricPairTest {
 protected:
  // Bytes pass in both directions, into and out of the middle of regions.
  void ExpectTransfers() {
    const auto remote = Shared(b_);
    const auto local = Allocate(a_);
    std::strcpy(local->address() + 5000, "written");
    const RemoteSpan span = {remote->key(), 12345, 8000};
    ASSERT_TRUE(a_.channel->Write(local->address() + 5000, span, 1).ok());
    ASSERT_TRUE(a_.Notify("written").ok());
    const size_t notes = b_.handler->notes.size();
    ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() > notes; }));
    EXPECT_STREQ(remote->address() + 12345, "written");
    std::strcpy(remote->address() + 12345, "to be read");
    ASSERT_TRUE(a_.channel->Read(span, local->address(), 99).ok());
    ASSERT_TRUE(PollUntil([&] {
      return !a_.handler->transfers.empty() && a_.handler->transfers.back().first == 99;
    }));
    EXPECT_TRUE(a_.handler->transfers.back().second.ok());
    EXPECT_STREQ(local->address(), "to be read");
  }
};

class EachMode : public LibfabricMemoryTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(EachMode, BytesAreReachedAsTheProviderWants) {
  SetFaulty(std::string("mr=") + GetParam());
  ConnectedPair();
  ExpectTransfers();
}

INSTANTIATE_TEST_SUITE_P(, EachMode,
                         ::testing::Values("prov_key", "virt_addr", "local", "allocated",
                                           "endpoint", "prov_key+virt_addr+local+allocated",
                                           "prov_key+endpoint+allocated",
                                           "prov_key+virt_addr+local+allocated+endpoint"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& character : name) {
                             if (character == '+') character = '_';
                           }
                           return name;
                         });

TEST_F(LibfabricMemoryTest, ShortKeysAreHonored) {
  SetFaulty("mr_key_size=2");
  ConnectedPair();
  ExpectTransfers();
  SetFaulty("mr_key_size=8");
}

TEST_F(LibfabricMemoryTest, WhatCannotBeRegisteredIsNotShared) {
  for (const char* mode : {"mr=prov_key", "mr=prov_key+virt_addr+local+allocated+endpoint"}) {
    SetFaulty(mode);
    ConnectedPair();
    const auto region = Allocate(b_);
    const auto another = Allocate(b_);
    SetFaulty("mr_fail=1");
    EXPECT_EQ(b_.channel->Share(region->key()).code(), Code::kResourceExhausted);
    EXPECT_EQ(b_.channel->Share(region->key()).code(), Code::kResourceExhausted);
    EXPECT_GE(FaultyCounters().refused_registrations, 2u);
    ExpectToTalk();
    SetFaulty("mr_fail=0");
    EXPECT_TRUE(b_.channel->Share(region->key()).ok());
    EXPECT_TRUE(b_.channel->Share(region->key()).ok());
    ExpectToTalk();
    Drop();
  }
}

TEST_F(LibfabricMemoryTest, ALimitOfTheHostIsNotShared) {
  SetFaulty("mr=prov_key+local+allocated");
  ConnectedPair();
  const auto region = Allocate(b_, 4);
  SetFaulty("mr_limit=" + std::to_string(FaultyCounters().registered_bytes + region->length() - 1));
  const Status shared = b_.channel->Share(region->key());
  EXPECT_EQ(shared.code(), Code::kResourceExhausted);
  testing::ExpectHas(shared, std::to_string(region->length()) + " bytes");
  SetFaulty("mr_limit=0");
  ExpectTransfers();
}

// A source or destination that the provider does not register.
TEST_F(LibfabricMemoryTest, ALocalEndThatCannotBeRegisteredFailsItsTransferOnly) {
  SetFaulty("mr=prov_key+local");
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  SetFaulty("mr_fail=1");
  const RemoteSpan span = {remote->key(), 0, 100};
  EXPECT_EQ(a_.channel->Write(local->address(), span, 1).code(), Code::kResourceExhausted);
  ASSERT_TRUE(a_.channel->Read(span, local->address(), 2).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 1; }));
  EXPECT_EQ(a_.handler->transfers[0].second.code(), Code::kResourceExhausted);
  SetFaulty("mr_fail=0");
  ExpectToTalk();
  ExpectTransfers();
}

TEST_F(LibfabricMemoryTest, ARegionThatEndsIsNotReachedAnyMore) {
  ConnectedPair();
  auto remote = Shared(b_);
  const auto local = Allocate(a_);
  const RemoteSpan span = {remote->key(), 0, 100};
  const uint64_t before = FaultyCounters().regions;
  remote.reset();
  EXPECT_LT(FaultyCounters().regions, before);
  ExpectToTalk();
  ASSERT_TRUE(a_.channel->Read(span, local->address(), 1).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 1; }));
  EXPECT_EQ(a_.handler->transfers[0].second.code(), Code::kInvalidArgument);
  ExpectToTalk();
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
