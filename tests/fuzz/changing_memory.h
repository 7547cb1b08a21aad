// Memory that changes while it is read, as a peer may change what it shares with a task.
//
// The memory is protected. Each instruction that touches it faults; the handler makes the changes
// that are due, lets this one instruction pass, and protects the memory again. So a value that is
// read twice can differ, at a place that the input chooses, and every run repeats exactly. x86-64
// only; elsewhere the memory does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "input.h"

namespace rdma_transport::fuzz {

struct Change {
  uint32_t before_read = 0;  // made before the nth instruction that touches the memory
  uint32_t offset = 0;
  uint8_t value = 0;
};

// Some changes, mostly near the front, where headers lie.
std::vector<Change> TakeChanges(Input* input);

// Calls `use` with `bytes` in such memory. Behind them lies memory that must not be touched. One
// thread at a time; inside of `use` another call gets ordinary memory.
void WithChangingMemory(std::string_view bytes, const std::vector<Change>& changes,
                        const std::function<void(const char* data, size_t length)>& use);

}  // namespace rdma_transport::fuzz
