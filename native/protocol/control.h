// Notifications that carry one number.
#pragma once

#include <cstdint>

#include "fabric/fabric.h"
#include "protocol/wire.h"

namespace rdma_transport {

inline ControlMessage ControlOf(MessageType type, uint64_t value, uint32_t generation = 0) {
  ControlMessage message = {};
  message.type = type;
  message.generation = generation;
  message.value = value;
  return message;
}

inline Status NotifyControl(fabric::Channel* channel, MessageType type, uint64_t value,
                            fabric::Urgency urgency, uint32_t generation = 0,
                            fabric::After after = fabric::After::Everything()) {
  ControlMessage message = ControlOf(type, value, generation);
  const iovec part = {&message, sizeof(message)};
  return channel->Notify(&part, 1, urgency, nullptr, after);
}

}  // namespace rdma_transport
