// Gives buffers offsets in one piece of memory, which those that are never in use together share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace rdma_transport::analyzer {

// Returns the offset of each buffer. Buffers for which `overlap` returns true do not share memory.
// Greedy by size with best fit, after Y. Pisarchyk, J. Lee, "Efficient Memory Management for Deep
// Neural Net Inference", 2020. Time is quadratic in the number of buffers.
std::vector<uint64_t> Pack(const std::vector<uint64_t>& sizes,
                           const std::function<bool(size_t, size_t)>& overlap);

}  // namespace rdma_transport::analyzer
