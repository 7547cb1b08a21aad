// A table of embeddings whose rows are divided among the ranks of a group. Each owner keeps its
// rows in registered memory. Lookups read them one-sidedly; updates are sent to the owners by the
// group's collectives, and applied there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/call_queue.h"
#include "embeddings/ids.h"
#include "embeddings/reader.h"
#include "embeddings/shard.h"

namespace rdma_transport::embeddings {

struct TableOptions {
  std::string name;  // for messages
  uint64_t rows = 0;
  uint64_t dim = 0;
  ElementType type = ElementType::kFloat32;
  Optimizer optimizer;
};

// Gradients of a batch, summed by row, in the order in which they are sent to the owners.
struct RowGradients {
  Grouped grouped;
  std::vector<double> sums;  // memory for rows of the table's type
};

// Thread-safe. Keeps its group's connections; a group that was closed ends all lookups.
class Table {
 public:
  // Allocates this rank's shard, and shares it.
  static Status Open(std::shared_ptr<collectives::CallQueue> group, const TableOptions& options,
                     std::shared_ptr<Table>* table);
  ~Table();
  // Once all ranks have opened it. `keys`: Shard::key() of all, by rank.
  Status Attach(const std::vector<uint64_t>& keys, const collectives::Patience& patience);

  const std::string& name() const { return options_.name; }
  uint64_t dim() const { return options_.dim; }
  ElementType type() const { return options_.type; }
  size_t row_bytes() const { return layout_.row_bytes(); }
  Shard* shard() const { return shard_.get(); }
  // Whether Lookup() waits for no one.
  bool all_mapped() const { return reader_.all_mapped(); }

  // Reads the rows with these ids to `out`, one after the other. InvalidArgument: one is no row.
  // Unavailable: an owner is gone.
  Status Lookup(const Ids& ids, char* out, const collectives::Patience& patience) const;
  // Sums gradients by row, in their order. They are aligned for the type of the table.
  Status Sum(const Ids& ids, const char* gradients, RowGradients* made) const;
  // Sums what all ranks have sent to this one, in their order, and updates its rows, each by its
  // gradient divided by the number of ranks. To be called once for each step, with or without rows.
  Status Apply(const Ids& ids, const char* gradients);

  // Runs `work`, which may wait, on the thread of the table. It starts with the first call.
  void RunLater(std::function<void()> work);

  // The tables of this process by number, through which operations of TensorFlow find them.
  static void Publish(int number, std::shared_ptr<Table> table);  // null removes it
  static std::shared_ptr<Table> Find(int number);                 // null: there is none

 private:
  struct Work;
  Table(std::shared_ptr<collectives::CallQueue> group, const TableOptions& options);
  Status CheckOurs() const;

  const std::shared_ptr<collectives::CallQueue> group_;
  const TableOptions options_;
  const Layout layout_;
  const int owner_;  // process
  std::unique_ptr<Shard> shard_;
  Reader reader_;

  const std::shared_ptr<Work> work_;
};

}  // namespace rdma_transport::embeddings
