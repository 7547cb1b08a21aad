// Combines arrays element by element, in a fixed order. Stateless and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "collectives/types.h"

namespace rdma_transport::collectives {

// Returns InvalidArgument if `op` has no meaning for `dtype`: complex numbers have no order.
Status CheckReduction(DType dtype, ReduceOp op);

// What a reduction does with subnormal numbers. TensorFlow's kernels take them for zeros, and never
// return one; float16 has no numbers that are subnormal as float, so it keeps its own.
enum class Subnormals : uint8_t { kKept, kFlushed };

// Sets out[i] = (sources[0][i] op sources[1][i]) op sources[2][i] ... for `count` elements, and
// copies the result to `copy` unless that is null. Types of 16 bits are combined in float32 and
// rounded once. The caller's thread may flush subnormal numbers or not. `out` may be one of the
// sources; otherwise no arrays overlap. Requires at least one source, aligned arrays, and an `op`
// that CheckReduction() accepts.
void Reduce(DType dtype, ReduceOp op, const std::vector<const char*>& sources, size_t count,
            char* out, char* copy, Subnormals subnormals = Subnormals::kKept);

}  // namespace rdma_transport::collectives
