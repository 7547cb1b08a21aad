// The addresses of channels.

#include "fabric/libfabric/wire.h"

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
