// Settings that list devices, such as RDMA_TRANSPORT_DEVICES, in the syntax of NCCL_IB_HCA.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rdma_transport::fabric::host {

// A parsed list; its functions are stateless.
struct DeviceList {
  struct Entry {
    std::string name;
    int port = 0;  // 0: all ports

    std::string Text() const { return port == 0 ? name : name + ":" + std::to_string(port); }
  };

  bool all_but = false;  // "^": the entries are excluded
  bool exact = false;    // "=": otherwise names are prefixes
  std::vector<Entry> entries;

  // Returns whether `entry` matches this port.
  bool Names(const Entry& entry, std::string_view device, int port) const;
  // Returns the rank of a port in the order of preference, or -1 if it must not be used.
  int Place(std::string_view device, int port) const;
  // Returns whether any port of the device may be used.
  bool MayUse(std::string_view device) const;
};

// Parses the value of a setting. Returns InvalidArgument, with `example`, if it is not valid.
Status ParseDeviceList(const std::string& setting, const std::string& text,
                       const std::string& example, DeviceList* list);

}  // namespace rdma_transport::fabric::host
