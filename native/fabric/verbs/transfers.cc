#include "fabric/verbs/transfers.h"

#include <algorithm>

namespace rdma_transport::fabric::verbs {

void Transfers::Push(Work work, const RemoteSpan& span, const RegionRecord& region, uint64_t chunk,
                     QueuePair* pair, const Registration* proof) {
  if (work.kind == Work::Kind::kRead || span.length == 0) proof = nullptr;
  work.remote = region.address + span.offset;
  work.rkey = region.rkey;
  uint64_t rest = span.length;
  do {
    work.length = static_cast<uint32_t>(std::min(chunk, rest));
    rest -= work.length;
    work.last = rest == 0 && proof == nullptr;
    pair->Push(work);
    work.local += work.length;
    work.remote += work.length;
  } while (rest > 0);
  if (proof == nullptr) return;
  work.kind = Work::Kind::kRead;
  work.length = 1;
  work.last = true;
  --work.remote;
  work.local = proof->address();
  work.local_end = {proof->lkey(), proof->shift()};
  pair->Push(work);
}

}  // namespace rdma_transport::fabric::verbs
