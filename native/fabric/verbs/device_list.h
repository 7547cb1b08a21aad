// RDMA_TRANSPORT_DEVICES, in the grammar of NCCL_IB_HCA.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace rdma_transport::fabric::verbs {

struct DeviceList {
  struct Entry {
    std::string name;
    int port = 0;  // 0: each

    std::string Text() const { return port == 0 ? name : name + ":" + std::to_string(port); }
  };

  bool all_but = false;  // "^": the entries are left out
  bool exact = false;    // "=": otherwise names are prefixes
  std::vector<Entry> entries;

  // Whether an entry speaks of this port.
  bool Names(const Entry& entry, std::string_view device, int port) const;
  // The place of a port in the order of preference; -1: it may not be used.
  int Place(std::string_view device, int port) const;
  // Whether any port of the device may be used, however many it has.
  bool MayUse(std::string_view device) const;
};

// InvalidArgument: what cannot be understood, with an example.
Status ParseDeviceList(const std::string& text, DeviceList* list);

}  // namespace rdma_transport::fabric::verbs
