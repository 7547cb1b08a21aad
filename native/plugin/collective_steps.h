// Collectives run under step ids of their own, most of them under 0, which may also be those of
// rendezvous; in the protocol, which has one space of steps, they are therefore told apart.
#pragma once

#include <cstdint>

namespace rdma_transport {

constexpr int64_t StepOfCollectives(int64_t step) { return step ^ 0x5ec70f5c011ec71e; }

}  // namespace rdma_transport
