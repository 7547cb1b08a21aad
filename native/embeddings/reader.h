// Reads rows of all ranks: those of this host from their mapped memory, others by one-sided reads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/mesh.h"
#include "embeddings/ids.h"
#include "embeddings/shard.h"

namespace rdma_transport::embeddings {

// Thread-safe once it is attached.
class Reader {
 public:
  // `mesh` must outlive it. `name`: of the table, for messages.
  Reader(const collectives::Mesh* mesh, const Layout& layout, std::string name)
      : mesh_(mesh), layout_(layout), name_(std::move(name)) {}

  // `keys`: of all shards, which their owners have shared, by rank. Waits until they can be read.
  Status Attach(const Shard& own, const std::vector<uint64_t>& keys,
                const collectives::Patience& patience);
  // Whether all shards are mapped: then Read() waits for no one.
  bool all_mapped() const { return all_mapped_; }

  // Reads rows, which exist, to `out`, one after the other.
  Status Read(const std::vector<uint64_t>& rows, char* out,
              const collectives::Patience& patience) const;

 private:
  struct Staging;
  struct Wanted;
  struct Chunk;

  // Adds the rank of an owner, and the table, to an error.
  Status Explained(const Status& status, int owner) const;
  Status ReadMapped(uint64_t row, char* out, const collectives::Patience& patience) const;
  Status ReadRemote(const std::vector<uint64_t>& rows, const std::vector<uint32_t>& places,
                    char* out, const collectives::Patience& patience) const;
  Status Start(const std::vector<Wanted>& wanted, size_t begin, Chunk* chunk) const;
  Status Finish(const std::vector<Wanted>& wanted, Chunk* chunk, char* out,
                std::vector<Wanted>* torn, const collectives::Patience& patience) const;
  Status TakeStaging(std::shared_ptr<Staging>* staging) const;

  const collectives::Mesh* const mesh_;
  const Layout layout_;
  const std::string name_;
  std::vector<fabric::MappedSpan> shards_;  // by rank; no data: it is remote
  std::vector<uint64_t> keys_;
  bool all_mapped_ = true;
  mutable std::mutex mu_;
  mutable std::vector<std::shared_ptr<Staging>> free_;
};

}  // namespace rdma_transport::embeddings
