#include "fabric/host/channel_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace rdma_transport::fabric::host {
namespace {

using Pointer = std::shared_ptr<int>;
using Table = ChannelTable<int, std::weak_ptr<int>>;

TEST(ChannelTableTest, TheCopyKeepsAChannelUntilTheNextRefresh) {
  int changes = 0;
  Table table([&] { ++changes; });
  auto channel = std::make_shared<int>(5);
  const std::weak_ptr<int> seen = channel;
  ASSERT_TRUE(table.Add(1, channel));
  EXPECT_TRUE(table.stale());
  EXPECT_EQ(table.Known(1), nullptr);
  EXPECT_EQ(table.Find(1), channel.get());
  EXPECT_EQ(changes, 1);
  EXPECT_FALSE(table.stale());
  table.Remove(1);
  channel.reset();
  EXPECT_EQ(*table.Known(1), 5);
  table.Refresh();
  EXPECT_TRUE(seen.expired());
  EXPECT_EQ(table.Find(1), nullptr);
  EXPECT_EQ(changes, 2);
}

TEST(ChannelTableTest, AKeyIsFreeWhenItsChannelHasEnded) {
  Table table;
  auto first = std::make_shared<int>(1);
  const auto second = std::make_shared<int>(2);
  EXPECT_TRUE(table.Add(7, first));
  EXPECT_FALSE(table.Add(7, second));
  first.reset();
  EXPECT_TRUE(table.Add(7, second));
  EXPECT_EQ(table.All(), std::vector<Pointer>{second});
}

TEST(ChannelTableTest, EachChannelGetsItsTurn) {
  ChannelTable<int, Pointer> table;
  for (int key = 0; key < 3; ++key) table.Add(key, std::make_shared<int>(key));
  table.Refresh();
  std::vector<int> looks(3);
  const auto look = [&](const Pointer& channel) { ++looks[static_cast<size_t>(*channel)]; };
  for (int turn = 0; turn < 3; ++turn) table.LookAtNext(2, look);
  EXPECT_EQ(looks, std::vector<int>({2, 2, 2}));
  table.LookAtNext(100, look);
  EXPECT_EQ(looks, std::vector<int>({3, 3, 3}));
}

TEST(ChannelTableTest, OthersAddAndRemoveWhileOneThreadPolls) {
  ChannelTable<int, Pointer> table;
  std::atomic<int> left{2};
  const auto change = [&](int first) {
    for (int key = first; key < first + 2000; ++key) {
      table.Add(key, std::make_shared<int>(key));
      if (key % 8 != 0) table.Remove(key);
    }
    --left;
  };
  std::thread one(change, 0);
  std::thread other(change, 10000);
  while (left > 0) {
    table.Refresh();
    for (const Pointer& channel : table.copy()) ASSERT_EQ(table.Known(*channel), channel.get());
  }
  one.join();
  other.join();
  table.Refresh();
  EXPECT_EQ(table.copy().size(), 500U);
}

}  // namespace
}  // namespace rdma_transport::fabric::host
