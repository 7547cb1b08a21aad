// Combines arrays element by element, in a fixed order. Stateless and thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "collectives/types.h"

namespace rdma_transport::collectives {

// Returns InvalidArgument if `op` has no meaning for `dtype`: complex numbers have no order.
Status CheckReduction(DType dtype, ReduceOp op);

// Sets out[i] = (sources[0][i] op sources[1][i]) op sources[2][i] ... for `count` elements, and
// copies the result to `copy` unless that is null. Types of 16 bits are combined in float32 and
// rounded once. `out` may be one of the sources; otherwise no arrays overlap. Requires at least
// one source, aligned arrays, and an `op` that CheckReduction() accepts.
void Reduce(DType dtype, ReduceOp op, const std::vector<const char*>& sources, size_t count,
            char* out, char* copy);

}  // namespace rdma_transport::collectives
