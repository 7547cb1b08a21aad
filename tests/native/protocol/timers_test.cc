// Timeouts run on time, however much there is to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "fabric/registry.h"
#include "forwarding_device.h"
#include "protocol_fixture.h"

namespace rdma_transport::testing {
namespace {

// Each poll finds something, as it does while another peer sends without a pause.
class BusyDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  int Poll() override { return std::max(ForwardingDevice::Poll(), 1); }
};

class TimersTest : public ProtocolTest {
 protected:
  static Settings WithShortTimeout() {
    Settings settings = TestSettings();
    settings.peer_timeout = kSecond;
    return settings;
  }
  static std::unique_ptr<fabric::Device> Busy(const Settings& settings) {
    std::unique_ptr<fabric::Device> device;
    EXPECT_TRUE(fabric::OpenDevice(settings, &device).ok());
    return std::make_unique<BusyDevice>(std::move(device));
  }

  Task silent_{"/job:silent"};
  Task busy_{"/job:busy", WithShortTimeout(), Busy(WithShortTimeout())};
};

TEST_F(TimersTest, ASilentPeerIsNoticedByATaskThatIsNeverIdle) {
  EXPECT_TRUE(Send(silent_, busy_, Tensor(1, "first", Bytes(64, 1), {64})).ok());
  EXPECT_TRUE(Receive(busy_, silent_, 1, "first")->Get().status.ok());
  // Over the link that is then waited on.
  EXPECT_TRUE(Send(busy_, silent_, Tensor(1, "back", Bytes(64, 1), {64})).ok());
  EXPECT_TRUE(Receive(silent_, busy_, 1, "back")->Get().status.ok());
  silent_.Stop();
  const Delivery never = Receive(busy_, silent_, 2, "second")->Get();
  EXPECT_EQ(never.status.code(), Code::kUnavailable) << never.status.message();
}

}  // namespace
}  // namespace rdma_transport::testing
