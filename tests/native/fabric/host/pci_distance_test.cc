#include "fabric/host/pci_distance.h"

#include <gtest/gtest.h>

#include <string>

#include "pretend_pci.h"

namespace rdma_transport::fabric::host {
namespace {

TEST(PciDistance, IsThatOfTheNearestCommonBridge) {
  const testing::PretendPci pci;
  const std::string gpu =
      pci.Add("gpu", "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:08.0/0000:3e:00.0", "0") +
      "/device";
  const struct {
    const char* path;
    const char* node;
    PciDistance distance;
  } cards[] = {
      {"pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:04.0/0000:3d:00.0", "0", PciDistance::kSwitch},
      {"pci0000:3a/0000:3a:00.0/0000:41:00.0", "0", PciDistance::kSwitch},
      {"pci0000:3a/0000:3a:02.0/0000:42:00.0", "0", PciDistance::kHostBridge},
      {"pci0000:5d/0000:5d:00.0/0000:5e:00.0", "0", PciDistance::kSocket},
      {"pci0000:ae/0000:ae:00.0/0000:af:00.0", "1", PciDistance::kSystem}};
  for (const auto& [path, node, distance] : cards) {
    const std::string card = pci.Add(path, path, node) + "/device";
    EXPECT_EQ(DistanceBetween(card, gpu), distance) << path;
    EXPECT_EQ(DistanceBetween(gpu, card), distance) << path;
  }
}

TEST(PciDistance, IsTheGreatestIfItIsNotKnown) {
  const testing::PretendPci pci;
  const std::string gpu = pci.Add("gpu", "pci0000:3a/0000:3b:00.0", "0") + "/device";
  EXPECT_EQ(DistanceBetween(gpu + "/none", gpu), PciDistance::kSystem);
  EXPECT_EQ(DistanceBetween(gpu, ""), PciDistance::kSystem);
}

}  // namespace
}  // namespace rdma_transport::fabric::host
