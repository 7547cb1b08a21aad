#include "protocol/hand_over.h"

#include <utility>

#include "protocol/integrity.h"
#include "protocol/trace.h"

namespace rdma_transport {

void HandOver(Traffic* traffic, Delivery delivery, PendingRecv* recv) {
  Trace::HandedOver(delivery.arrival);
  Verify(traffic->tasks.remote, &delivery);
  if (delivery.status.ok()) traffic->Waited(delivery.mode).Add(Now() - recv->began());
  recv->OnDelivery(std::move(delivery));
}

}  // namespace rdma_transport
