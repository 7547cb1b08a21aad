// What tasks learn of each other before they share a channel: bootstrap messages, and the addresses
// of channels on shared memory and verbs. What can be read can be written again, and then means the
// same.

#include <string>

#include "fabric/combined.h"
#include "fabric/shm/address.h"
#include "fabric/verbs/wire.h"
#include "input.h"
#include "protocol/bootstrap.h"
#include "scripted_fabric.h"

namespace rdma_transport::fuzz {
namespace {

void ReadRequest(const std::string& bytes) {
  BootstrapRequest read;
  if (!BootstrapRequest::Decode(bytes, &read).ok()) return;
  BootstrapRequest again;
  Require(BootstrapRequest::Decode(read.Encode(), &again).ok());
  Require(again.Encode() == read.Encode());
}

void ReadReply(const std::string& bytes) {
  BootstrapReply read;
  if (!BootstrapReply::Decode(bytes, &read).ok()) return;
  BootstrapReply again;
  Require(BootstrapReply::Decode(read.Encode(), &again).ok());
  Require(again.Encode() == read.Encode());
}

template <typename Address>
void ReadAddress(const std::string& bytes) {
  Address read;
  if (!Address::Decode(bytes, &read).ok()) return;
  Address again;
  Require(Address::Decode(read.Encode(), &again).ok());
  Require(again.Encode() == read.Encode());
}

// Of several fabrics, each under its name.
void ReadCombined(const std::string& bytes) {
  std::vector<fabric::Member> members;
  for (const char* name : {"shm", "verbs"}) {
    members.push_back({name, std::make_unique<ScriptedDevice>(Manners{})});
  }
  const fabric::CombinedDevice device(std::move(members), {});
  device.Reaches(bytes).IgnoreError();
}

}  // namespace
}  // namespace rdma_transport::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rdma_transport;
  fuzz::Input input(data, size);
  const size_t kind = input.Below(5);
  const std::string bytes = input.Bytes(size);
  if (kind == 0) fuzz::ReadRequest(bytes);
  if (kind == 1) fuzz::ReadReply(bytes);
  if (kind == 2) fuzz::ReadAddress<fabric::shm::ChannelAddress>(bytes);
  if (kind == 3) fuzz::ReadAddress<fabric::verbs::ChannelAddress>(bytes);
  if (kind == 4) fuzz::ReadCombined(bytes);
  return 0;
}
