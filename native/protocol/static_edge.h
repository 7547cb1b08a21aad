// What both ends know of a static edge.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "memory/slot_pools.h"
#include "protocol/owner_ref.h"

namespace rdma_transport {

// All of a tensor but its bytes.
struct EdgeSpec {
  std::string key;  // of the rendezvous, without its tail
  uint32_t dtype = 0;
  std::vector<int64_t> dims;
  uint64_t bytes = 0;

  bool operator==(const EdgeSpec& other) const {
    return key == other.key && dtype == other.dtype && dims == other.dims && bytes == other.bytes;
  }
};

// An edge that the graph promises before its first tensor.
struct PlannedEdge {
  EdgeSpec spec;
  // Where its buffers will be born; empty: not known before the first of them.
  std::vector<std::shared_ptr<memory::SlotPool>> pools;
  // Whether its first buffer, which was there before the plan, joins the pool.
  bool joins_pool = false;
  std::string site;  // for people
};

// How an edge fared, for people.
struct EdgeReport {
  EdgeSpec spec;
  std::string peer;
  bool is_static = false;
  bool planned = false;
  bool at_receiver = false;
  uint64_t slots = 0;
  uint64_t busy = 0;  // of those at the receiver: not given back yet
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t staged_bytes = 0;
  std::string sites;  // where its buffers are allocated, as far as known; with commas
};

// Who gives back what the consumer is done with.
class LeaseMaker {
 public:
  virtual ~LeaseMaker() = default;
  // For memory of the sender: its end releases `buffer_id`.
  virtual OwnerRef MakeLoan(uint64_t buffer_id, std::shared_ptr<const void> mapping) = 0;
  // For a slot of the receiver: its end sends the credit.
  virtual OwnerRef MakeCredit(uint64_t credit, std::shared_ptr<const void> memory) = 0;
};

// Slots that an edge may have.
constexpr size_t kMaxSlots = 16;
// Slots that the receiver provides for an edge at first, and at most, if it has the memory.
constexpr uint32_t kReceiverSlots = 2;
constexpr uint32_t kMaxReceiverSlots = 6;
constexpr size_t kMaxEdges = 65536;  // over one link

}  // namespace rdma_transport
