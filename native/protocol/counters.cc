#include "protocol/counters.h"

namespace rdma_transport {

const char* PathName(Path path) {
  switch (path) {
    case Path::kStatic:
      return "static";
    case Path::kDynamic:
      return "dynamic";
    case Path::kInline:
      return "inline";
    case Path::kGrpc:
      return "grpc";
  }
  return "unknown";
}

Counters& GlobalCounters() {
  static auto* counters = new Counters;
  return *counters;
}

}  // namespace rdma_transport
