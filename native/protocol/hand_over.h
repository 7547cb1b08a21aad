// The last step of every tensor that the fabric delivers.
#pragma once

#include "protocol/pending_recv.h"

namespace rdma_transport {

// Completes a receive with what the fabric delivered for it: verifies the bytes, records the event
// for timelines, and counts the time since the receive began. `traffic` is of the peer that sent
// it. Only the caller that claimed `recv` may call it, on any thread.
void HandOver(Traffic* traffic, Delivery delivery, PendingRecv* recv);

}  // namespace rdma_transport
