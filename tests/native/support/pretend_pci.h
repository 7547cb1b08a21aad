// A pretend /sys with PCI devices.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace rdma_transport::testing {

// Removes it at its end.
class PretendPci {
 public:
  PretendPci() : root_(std::filesystem::temp_directory_path() / "pretend_pci_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~PretendPci() { std::filesystem::remove_all(root_); }
  PretendPci(const PretendPci&) = delete;
  PretendPci& operator=(const PretendPci&) = delete;

  // Makes a device below all bridges that `path` names, and a folder with a link to it as `device`,
  // as an RDMA device has one. Returns that folder.
  std::string Add(const std::string& name, const std::string& path, const std::string& node) const {
    const std::filesystem::path device = root_ + "/devices/" + path;
    const std::filesystem::path link = root_ + "/class/" + name;
    std::filesystem::create_directories(device);
    std::filesystem::create_directories(link);
    std::ofstream(device / "numa_node") << node << "\n";
    std::filesystem::create_directory_symlink(device, link / "device");
    return link;
  }

 private:
  std::string root_;
};

}  // namespace rdma_transport::testing
