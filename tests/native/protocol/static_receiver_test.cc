// What a peer that declares static edges may make this task keep.
#include "protocol/static_receiver.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <string>

namespace rdma_transport {
namespace {

class StaticReceiverTest : public ::testing::Test {
 protected:
  static TensorMessage Edge(uint32_t number, const std::string& key = "edge", uint32_t pool = 0) {
    TensorMessage message = {};
    message.header.type = MessageType::kEdge;
    message.header.dtype = 1;
    message.header.bytes = 4096;
    message.header.edge = {number, pool};
    message.dims = {1024};
    message.key = key;
    return message;
  }

  const LinkContext context_ = {};
  StaticReceiver receiver_{context_, nullptr, nullptr};
};

TEST_F(StaticReceiverTest, WhatIsKeptDoesNotDependOnTheNumbers) {
  const size_t before = mallinfo2().uordblks;
  for (uint32_t number = 65536; number < 1000 * 65536; number += 65536) {
    ASSERT_TRUE(receiver_.OnEdge(Edge(number)).ok());
    receiver_.OnRetire(number);
  }
  EXPECT_LT(mallinfo2().uordblks, before + (size_t{16} << 20));
  EXPECT_FALSE(receiver_.OnEdge(Edge(0)).ok());
  receiver_.OnRetire(65536);
}

TEST_F(StaticReceiverTest, EdgesAndTheirKeysAreBounded) {
  uint32_t number = 0;
  while (receiver_.OnEdge(Edge(++number)).ok()) ASSERT_LE(number, kMaxEdges);
  EXPECT_GT(number, kMaxEdges / 2);
  for (uint32_t each = 1; each < number; ++each) receiver_.OnRetire(each);
  const std::string longest(kMaxKeyLength, 'k');
  number = 0;
  while (receiver_.OnEdge(Edge(++number, longest)).ok()) ASSERT_LE(number, kMaxEdges / 2);
  for (uint32_t each = 1; each < number; ++each) receiver_.OnRetire(each);
  EXPECT_TRUE(receiver_.OnEdge(Edge(1, longest)).ok());
}

TEST_F(StaticReceiverTest, TheOrderOfDeclarationsIsFree) {
  EXPECT_TRUE(receiver_.OnEdge(Edge(6)).ok());
  EXPECT_TRUE(receiver_.OnEdge(Edge(5)).ok());
  EXPECT_FALSE(receiver_.OnEdge(Edge(6)).ok()) << "declared twice";
}

TEST_F(StaticReceiverTest, ThePoolOfAnEdgeIsChecked) {
  EXPECT_TRUE(receiver_.OnEdge(Edge(1, "edge", 7)).ok());
  EXPECT_TRUE(receiver_.OnEdge(Edge(2, "edge", 7)).ok());
  TensorMessage longer = Edge(3, "edge", 7);
  longer.header.bytes *= 2;
  EXPECT_FALSE(receiver_.OnEdge(longer).ok()) << "its tensors do not fit into the pool's slots";
  StaticMessage tensor = {};
  tensor.edge = 1;
  Arrival arrival;
  KeyId key;
  EXPECT_FALSE(receiver_.OnStatic(tensor, "", &arrival, &key).ok()) << "the pool has no slot";
  EXPECT_FALSE(receiver_.OnReturnSlot(CreditOf(7, 0)).ok());
  receiver_.OnRetire(1);
  receiver_.OnRetire(2);
  EXPECT_TRUE(receiver_.OnRequestSlots(7, 1, nullptr).ok()) << "it may arrive late";
  EXPECT_TRUE(receiver_.OnReturnSlot(CreditOf(7, 0)).ok()) << "and so may this";
  EXPECT_TRUE(receiver_.OnEdge(longer).ok()) << "the pool was removed with its last edge";
}

}  // namespace
}  // namespace rdma_transport
