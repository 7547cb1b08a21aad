// The addresses of channels, and what a peer announces.

#include "fabric/libfabric/wire.h"

#include <gtest/gtest.h>

#include <string>

#include "fabric/libfabric/transfers.h"

namespace rdma_transport::fabric::libfabric {
namespace {

ChannelAddress Example() {
  ChannelAddress address;
  address.provider = "efa";
  address.protocol = 7;
  address.protocol_version = 3;
  address.format = 5;
  address.name = "sixteen bytes of";
  address.tag = 99;
  address.number = 12;
  address.frames = 256;
  address.remote_data = true;
  address.mark_address = 0x1000;
  address.mark_key = 77;
  address.token = std::string(kTokenLength, 't');
  return address;
}

TEST(LibfabricWireTest, AnAddressIsReadAsItWasWritten) {
  const ChannelAddress address = Example();
  ChannelAddress read;
  ASSERT_TRUE(ChannelAddress::Decode(address.Encode(), &read).ok());
  EXPECT_EQ(read.provider, address.provider);
  EXPECT_EQ(read.protocol, address.protocol);
  EXPECT_EQ(read.protocol_version, address.protocol_version);
  EXPECT_EQ(read.format, address.format);
  EXPECT_EQ(read.name, address.name);
  EXPECT_EQ(read.tag, address.tag);
  EXPECT_EQ(read.number, address.number);
  EXPECT_EQ(read.frames, address.frames);
  EXPECT_EQ(read.remote_data, address.remote_data);
  EXPECT_EQ(read.mark_address, address.mark_address);
  EXPECT_EQ(read.mark_key, address.mark_key);
  EXPECT_EQ(read.token, address.token);
  EXPECT_EQ(read.Encode(), address.Encode());
}

TEST(LibfabricWireTest, AddressesOutOfBoundsAreMalformed) {
  ChannelAddress read;
  const auto refused = [&read](void (*change)(ChannelAddress*)) {
    ChannelAddress address = Example();
    change(&address);
    return ChannelAddress::Decode(address.Encode(), &read).code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto* address) { address->tag = 0; }));
  EXPECT_TRUE(refused([](auto* address) { address->number = 0; }));
  EXPECT_TRUE(refused([](auto* address) { address->number = kMaxChannels + 1; }));
  EXPECT_TRUE(refused([](auto* address) { address->frames = 7; }));
  EXPECT_TRUE(refused([](auto* address) { address->frames = 1 << 20; }));
  EXPECT_TRUE(refused([](auto* address) { address->name = ""; }));
  EXPECT_TRUE(refused([](auto* address) { address->name = std::string(2 * kMaxName, 'x'); }));
  const std::string bytes = Example().Encode();
  for (size_t length = 0; length < bytes.size() - Example().name.size(); ++length) {
    EXPECT_FALSE(ChannelAddress::Decode(bytes.substr(0, length), &read).ok()) << length;
  }
}

TEST(LibfabricWireTest, AProviderNameIsPrintable) {
  ChannelAddress address = Example();
  address.provider = "\033[2Jtcp\n";
  ChannelAddress read;
  ASSERT_TRUE(ChannelAddress::Decode(address.Encode(), &read).ok());
  for (const char character : read.provider) EXPECT_GE(character, ' ');
}

// --- Regions ---

TEST(LibfabricTransfersTest, NothingOutsideOfAnnouncedRegionsIsAccessed) {
  Transfers transfers;
  ASSERT_TRUE(transfers.Learn({1, 1000, 0, 5, 1}).ok());
  ASSERT_TRUE(transfers.Learn({2, ~uint64_t{0}, ~uint64_t{0} - 10, 5, 0}).ok());
  char local[16];
  const auto begin = [&](bool write, const RemoteSpan& span) {
    return transfers.Begin(write, span, local, nullptr, 1, 4096).code();
  };
  EXPECT_EQ(begin(true, {1, 0, 1001}), Code::kInvalidArgument);
  EXPECT_EQ(begin(true, {1, 1001, 0}), Code::kInvalidArgument);
  EXPECT_EQ(begin(false, {1, 999, ~uint64_t{0}}), Code::kInvalidArgument);
  EXPECT_EQ(begin(false, {1, ~uint64_t{0}, 2}), Code::kInvalidArgument);
  EXPECT_EQ(begin(false, {3, 0, 1}), Code::kInvalidArgument);
  EXPECT_EQ(begin(true, {2, 0, 1}), Code::kPermissionDenied);
  EXPECT_EQ(transfers.FrontWrite(), nullptr);
  EXPECT_EQ(transfers.FrontRead(), nullptr);
  EXPECT_EQ(begin(true, {1, 990, 10}), Code::kOk);
  EXPECT_EQ(begin(false, {2, 100, 16}), Code::kOk);
  transfers.Forget(1);
  EXPECT_EQ(begin(true, {1, 990, 10}), Code::kInvalidArgument);
}

TEST(LibfabricTransfersTest, APeerAnnouncesNotTooManyRegions) {
  Transfers transfers;
  uint64_t key = 0;
  while (transfers.Learn({++key, 1, 0, 0, 0}).ok()) ASSERT_LT(key, 1u << 20);
  EXPECT_EQ(key, Transfers::kMaxRegions + 1);
  EXPECT_TRUE(transfers.Learn({1, 2, 0, 0, 0}).ok()) << "it is known already";
}

TEST(LibfabricTransfersTest, AnOperationEndsWithItsLastPiece) {
  Transfers transfers;
  ASSERT_TRUE(transfers.Learn({1, 1000, 50, 5, 1}).ok());
  char local[1000];
  ASSERT_TRUE(transfers.Begin(true, {1, 100, 250}, local, nullptr, 77, 100).ok());
  std::vector<Piece> pieces;
  while (transfers.FrontWrite() != nullptr) {
    pieces.push_back(*transfers.FrontWrite());
    transfers.PopWrite();
  }
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[2].address, 350u);
  EXPECT_EQ(pieces[2].length, 50u);
  EXPECT_EQ(pieces[2].local, local + 200);
  EXPECT_EQ(transfers.first_unfinished(), 1u);
  for (const int i : {2, 0, 1}) {
    EXPECT_TRUE(transfers.TakeEnded().empty());
    transfers.OnEnded(pieces[i].transfer, i + 1);
    EXPECT_EQ(transfers.first_unfinished(), i == 2 ? 1u : i == 0 ? 2u : 4u);
  }
  const auto ended = transfers.TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].cookie, 77u);
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
