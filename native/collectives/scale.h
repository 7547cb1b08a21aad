// Divides and multiplies arrays, element by element. Stateless and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/types.h"

namespace rdma_transport::collectives {

// What happens to each element: it is divided, and then multiplied.
struct Scale {
  uint64_t divisor = 1;
  double factor = 1.0;
  bool none() const { return divisor == 1 && factor == 1.0; }
};

// Sets out[i] = in[i] / divisor * factor for `count` elements, in the type itself, or float for
// those of 16 bits, which are rounded once. Quotients of integers are rounded to zero; integers are
// multiplied as double, and a product that does not fit becomes the nearest one that does. bool
// stays as it is. `out` may be `in`; otherwise the arrays do not overlap. Both are aligned.
void ScaleArray(DType dtype, const Scale& scale, const char* in, char* out, size_t count);

}  // namespace rdma_transport::collectives
