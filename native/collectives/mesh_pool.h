// Registered memory in blocks, through which the pieces of large messages pass.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::collectives {

constexpr uint64_t kBlockBytes = uint64_t{256} << 10;

struct Block {
  char* data = nullptr;
  uint64_t key = 0;  // of the region, and the offset there
  uint64_t offset = 0;
};

// Thread-safe. Grows as needed, and keeps its memory until it is destroyed.
class BlockPool {
 public:
  explicit BlockPool(std::shared_ptr<fabric::Device> device) : device_(std::move(device)) {}

  // Returns the device's error if there is no memory.
  Status Take(Block* block);
  void Give(const Block& block);

 private:
  const std::shared_ptr<fabric::Device> device_;  // outlives the regions
  std::mutex mu_;
  std::vector<std::unique_ptr<fabric::Region>> regions_;
  std::vector<Block> free_;  // the last one is the warmest
};

}  // namespace rdma_transport::collectives
