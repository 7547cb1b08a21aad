// The rows that a batch names: they are checked, made unique, and grouped by their owners.
//
// Row r belongs to rank r % owners, and is row r / owners there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace rdma_transport::embeddings {

enum class IdType : uint8_t { kInt32 = 0, kInt64, kUint64 };

// The caller owns the array, aligned for its type.
struct Ids {
  IdType type = IdType::kInt64;
  const void* data = nullptr;
  size_t count = 0;
};

// Returns the ids as row numbers; InvalidArgument, which names table and id, if one is no row.
Status RowsOf(const Ids& ids, uint64_t rows, const std::string& table, std::vector<uint64_t>* out);

// Each row once: those of an owner together, in the order of ranks, and otherwise in the order of
// their first occurrences.
struct Grouped {
  std::vector<uint64_t> rows;
  std::vector<uint32_t> first;   // where each was first among those given
  std::vector<uint32_t> place;   // of each that was given, in `rows`
  std::vector<uint64_t> counts;  // by owner
};

// There are less than 2^32 rows.
Grouped GroupByOwner(const std::vector<uint64_t>& rows, int owners);

}  // namespace rdma_transport::embeddings
