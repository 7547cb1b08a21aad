#include "embeddings/ids.h"

namespace rdma_transport::embeddings {
namespace {

template <typename T>
Status RowsOfType(const Ids& ids, uint64_t rows, const std::string& table,
                  std::vector<uint64_t>* out) {
  const T* const given = static_cast<const T*>(ids.data);
  out->resize(ids.count);
  for (size_t i = 0; i < ids.count; ++i) {
    const auto row = static_cast<uint64_t>(given[i]);  // of a negative one, a large number
    if (row >= rows) {
      return Status(Code::kInvalidArgument, "table '" + table + "' has no row " +
                                                std::to_string(given[i]) + ": it has " +
                                                std::to_string(rows) + " rows, from 0 on");
    }
    (*out)[i] = row;
  }
  return OkStatus();
}

// Numbers rows in the order of their first occurrences.
class Numbers {
 public:
  explicit Numbers(size_t most) {
    while ((size_t{1} << bits_) < 2 * most) ++bits_;
    table_.resize(size_t{1} << bits_);
  }

  // `rows` has the rows that were numbered, and gets this one if it is new.
  uint32_t Of(uint64_t row, std::vector<uint64_t>* rows) {
    const size_t mask = table_.size() - 1;
    for (size_t at = row * 0x9E3779B185EBCA87 >> (64 - bits_);; at = (at + 1) & mask) {
      if (table_[at] == 0) {
        rows->push_back(row);
        table_[at] = static_cast<uint32_t>(rows->size());
      }
      if ((*rows)[table_[at] - 1] == row) return table_[at] - 1;
    }
  }

 private:
  int bits_ = 4;
  std::vector<uint32_t> table_;  // 1 + the number, or 0
};

}  // namespace

Status RowsOf(const Ids& ids, uint64_t rows, const std::string& table, std::vector<uint64_t>* out) {
  switch (ids.type) {
    case IdType::kInt32:
      return RowsOfType<int32_t>(ids, rows, table, out);
    case IdType::kInt64:
      return RowsOfType<int64_t>(ids, rows, table, out);
    case IdType::kUint64:
      return RowsOfType<uint64_t>(ids, rows, table, out);
  }
  return Status(Code::kInvalidArgument, "table '" + table + "': ids of an unknown type");
}

Grouped GroupByOwner(const std::vector<uint64_t>& rows, int owners) {
  const auto size = static_cast<uint64_t>(owners);
  Grouped made;
  made.place.resize(rows.size());
  made.counts.resize(size);
  std::vector<uint64_t> unique;
  std::vector<uint32_t> first;
  Numbers numbers(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t before = unique.size();
    made.place[i] = numbers.Of(rows[i], &unique);
    if (unique.size() == before) continue;
    first.push_back(static_cast<uint32_t>(i));
    ++made.counts[rows[i] % size];
  }
  std::vector<uint64_t> next(size);
  for (size_t owner = 1; owner < size; ++owner) {
    next[owner] = next[owner - 1] + made.counts[owner - 1];
  }
  made.rows.resize(unique.size());
  made.first.resize(unique.size());
  std::vector<uint32_t> moved(unique.size());
  for (size_t i = 0; i < unique.size(); ++i) {
    const uint64_t to = next[unique[i] % size]++;
    made.rows[to] = unique[i];
    made.first[to] = first[i];
    moved[i] = static_cast<uint32_t>(to);
  }
  for (uint32_t& place : made.place) place = moved[place];
  return made;
}

}  // namespace rdma_transport::embeddings
