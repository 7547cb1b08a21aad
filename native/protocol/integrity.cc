#include "protocol/integrity.h"

#include "base/checksum.h"
#include "base/log.h"

namespace rdma_transport {

void Verify(const std::string& peer, Delivery* delivery) {
  if (!delivery->checked || !delivery->status.ok()) return;
  if (ChecksumOf(delivery->data, delivery->bytes) == delivery->checksum) return;
  GlobalCounters().errors.Add("checksum");
  delivery->status =
      Status(Code::kDataLoss,
             "a tensor of peer " + peer + " (" + std::to_string(delivery->bytes) + " bytes, " +
                 PathName(delivery->path) +
                 ") is not what was sent: its checksum differs (RDMA_TRANSPORT_CHECKSUM). Look at "
                 "the memory and the cards of both hosts, and for code that writes to tensors");
  Log(LogLevel::kError, delivery->status.message());
}

}  // namespace rdma_transport
