#include "protocol/integrity.h"

#include "base/checksum.h"
#include "base/log.h"

namespace rdma_transport {

void Verify(const std::string& peer, Delivery* delivery) {
  if (!delivery->checked || !delivery->status.ok()) return;
  if (ChecksumOf(delivery->data, delivery->bytes) == delivery->checksum) return;
  GlobalCounters().errors.Add("checksum");
  delivery->status = Status(
      Code::kDataLoss,
      "a tensor of peer " + peer + " (" + std::to_string(delivery->bytes) + " bytes, " +
          ModeName(delivery->mode) +
          ") was corrupted: its checksum does not match (RDMA_TRANSPORT_CHECKSUM). Check the "
          "memory and the cards of both hosts, and look for code that writes to tensors");
  Log(LogLevel::kError, delivery->status.message());
}

}  // namespace rdma_transport
