// Collectives have step IDs of their own, mostly 0, which a rendezvous may use too. The protocol
// has one space of steps, so this maps them to different IDs.
#pragma once

#include <cstdint>

namespace rdma_transport {

constexpr int64_t StepOfCollectives(int64_t step) { return step ^ 0x5ec70f5c011ec71e; }

}  // namespace rdma_transport
