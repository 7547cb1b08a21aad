// Descriptions of cards.

#include <cstdlib>
#include <cstring>

#include "objects.h"

namespace faulty_libfabric {
namespace {

constexpr uint8_t kFirstBus = 0x10;
constexpr size_t kBitsPerGigabit = 1'000'000'000;

// The real library copies and frees it by these.
int Close(fid* client) {
  auto* nic = reinterpret_cast<fid_nic*>(client);
  std::free(nic->device_attr->name);
  std::free(nic->device_attr->driver);
  std::free(nic->device_attr);
  std::free(nic->bus_attr);
  std::free(nic->link_attr);
  std::free(nic);
  return 0;
}

int Control(fid* client, int command, void* argument) {
  if (command != FI_DUP) return -FI_ENOSYS;
  const auto* nic = reinterpret_cast<fid_nic*>(client);
  fid_nic* copy = MakeNic(nic->bus_attr->attr.pci.bus_id - kFirstBus,
                          nic->link_attr->speed / kBitsPerGigabit, InterfaceBelow(*nic));
  *static_cast<fid_nic**>(argument) = copy;
  return 0;
}

fi_ops* FidTable() {
  static fi_ops table = FidOperations(Close, nullptr, Control);
  return &table;
}

template <typename T>
T* Zeroed() {
  return static_cast<T*>(std::calloc(1, sizeof(T)));
}

}  // namespace

fid_nic* MakeNic(size_t number, uint64_t speed, const std::string& interface) {
  auto* nic = Zeroed<fid_nic>();
  nic->fid.fclass = FI_CLASS_NIC;
  nic->fid.ops = FidTable();
  nic->device_attr = Zeroed<fi_device_attr>();
  nic->device_attr->name = strdup(("nic" + std::to_string(number)).c_str());
  nic->device_attr->driver = strdup(interface.c_str());
  nic->bus_attr = Zeroed<fi_bus_attr>();
  nic->bus_attr->bus_type = FI_BUS_PCI;
  nic->bus_attr->attr.pci.bus_id = static_cast<uint8_t>(kFirstBus + number);
  nic->link_attr = Zeroed<fi_link_attr>();
  nic->link_attr->speed = speed * kBitsPerGigabit;
  nic->link_attr->state = speed == 0 ? FI_LINK_DOWN : FI_LINK_UP;
  return nic;
}

std::string InterfaceBelow(const fid_nic& nic) { return nic.device_attr->driver; }

}  // namespace faulty_libfabric
