// The rows of a table that one rank owns: weights in registered memory, which the others read, and
// the optimizer's slots, which only the owner uses, in memory of their own. So reads of adjacent
// rows carry weights only, and slots need no registration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "embeddings/optimizer.h"
#include "embeddings/row.h"
#include "fabric/fabric.h"

namespace rdma_transport::embeddings {

// How the rows of a table are divided: see ids.h.
struct Layout {
  uint64_t rows = 0;
  uint64_t dim = 0;  // weights of a row
  ElementType type = ElementType::kFloat32;
  uint64_t rank = 0;
  uint64_t ranks = 1;

  size_t row_bytes() const { return dim * SizeOf(type); }
  size_t stride() const { return RowStride(row_bytes()); }
  // The rows of a rank.
  uint64_t RowsOf(uint64_t owner) const { return rows / ranks + (owner < rows % ranks ? 1 : 0); }
};

// Thread-safe; changes take turns. Numbers of rows are those in the shard, and must be in it.
// Arrays have the type of the table and are aligned for it; slots of a row follow each other.
class Shard {
 public:
  // All rows are zeros, and slots what they are at first. ResourceExhausted: too little memory.
  static Status Open(std::shared_ptr<fabric::Device> device, const Layout& layout,
                     const Optimizer& optimizer, std::unique_ptr<Shard>* shard);

  uint64_t rows() const { return rows_; }
  uint64_t key() const { return region_->key(); }
  uint64_t length() const { return region_->length(); }
  const char* data() const { return region_->address(); }
  size_t slot_bytes() const { return slot_bytes_; }  // of one row

  // Stores rows; null leaves the slots as they are.
  void Store(uint64_t first, uint64_t count, const char* weights, const char* slots);
  // The reverse; null: not wanted.
  void Load(uint64_t first, uint64_t count, char* weights, char* slots) const;
  // Draws weights that are uniform in [low, high) and depend on nothing but seed, row and column.
  void Draw(double low, double high, uint64_t seed);

  // Updates rows, each given once.
  void Update(const std::vector<uint64_t>& rows, const char* gradients, double scale);
  void SetLearningRate(double rate);
  uint64_t steps() const;  // calls of Update()
  void SetSteps(uint64_t steps);

 private:
  Shard(std::shared_ptr<fabric::Device> device, const Layout& layout, const Optimizer& optimizer);
  uint64_t Global(uint64_t row) const { return row * layout_.ranks + layout_.rank; }
  char* Place(uint64_t row) const { return region_->address() + row * layout_.stride(); }
  char* Slots(uint64_t row) const { return slots_.get() + row * slot_bytes_; }

  struct Freed {
    void operator()(char* memory) const { std::free(memory); }
  };

  const std::shared_ptr<fabric::Device> device_;  // must outlive the region
  const Layout layout_;
  const uint64_t rows_;
  const size_t slot_bytes_;
  std::unique_ptr<fabric::Region> region_;
  std::unique_ptr<char, Freed> slots_;  // null if there are none
  mutable std::mutex mu_;               // guards the rest, and changes of the memory
  Optimizer optimizer_;
  uint64_t steps_ = 0;
};

}  // namespace rdma_transport::embeddings
