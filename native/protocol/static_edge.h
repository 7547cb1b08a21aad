// What both sides know of a static edge.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory/slot_policy.h"
#include "memory/slot_pools.h"

namespace rdma_transport {

// A tensor without its bytes.
struct EdgeSpec {
  std::string key;  // rendezvous key without frame-and-iteration suffix
  uint32_t dtype = 0;
  std::vector<int64_t> dims;
  uint64_t bytes = 0;

  bool operator==(const EdgeSpec& other) const {
    return key == other.key && dtype == other.dtype && dims == other.dims && bytes == other.bytes;
  }
};

// An edge known from the graph before its first tensor.
struct PlannedEdge {
  EdgeSpec spec;
  uint32_t slots = memory::kSlots;  // that its pool of receiver-side slots must have
  // The pools that will allocate its buffers. Empty if unknown before the first one.
  std::vector<std::shared_ptr<memory::SlotPool>> pools;
  // Whether its first buffer, allocated before the plan, joins the pool.
  bool joins_pool = false;
  // Whether it needs no slots if the peer's card reads memory of devices.
  bool read_in_place = false;
  std::string site;  // for people
};

// What the graph says of an edge whose task learns of it with the first tensor: its shape stays the
// same, so it is static at once. It lives as long as the graph's operation.
struct EdgePlan {
  uint32_t slots = memory::kSlots;  // as above
  std::string site;                 // the operation that allocates its buffers; empty if unknown
};

// An edge and its counters, for reports.
struct EdgeReport {
  EdgeSpec spec;
  std::string peer;
  bool is_static = false;
  bool planned = false;
  bool at_receiver = false;
  uint64_t slots = 0;  // if at_receiver: shared by all edges of this size to the peer
  uint64_t busy = 0;   // receiver-side slots not returned yet
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t staged_bytes = 0;
  std::string sites;  // known allocation sites, separated by commas
};

constexpr size_t kMaxEdges = 65536;  // per link

}  // namespace rdma_transport
