#include "memory/extent_allocator.h"

namespace rdma_transport::memory {

ExtentAllocator::~ExtentAllocator() {
  for (const auto& [base, head] : range_heads_) {
    for (Extent* extent = head; extent != nullptr;) {
      Extent* next = extent->next;
      delete extent;
      extent = next;
    }
  }
}

void ExtentAllocator::AddRange(char* base, size_t length) {
  auto* extent = new Extent{base, length, true, nullptr, nullptr};
  range_heads_[base] = extent;
  free_.insert(extent);
}

bool ExtentAllocator::RemoveRange(char* base) {
  const auto found = range_heads_.find(base);
  if (found == range_heads_.end()) return false;
  Extent* extent = found->second;
  if (!extent->free || extent->next != nullptr) return false;
  free_.erase(extent);
  range_heads_.erase(found);
  delete extent;
  return true;
}

char* ExtentAllocator::Allocate(size_t length) {
  length = (length + kAlignment - 1) / kAlignment * kAlignment;
  const auto best = free_.lower_bound(length);
  if (best == free_.end()) return nullptr;
  Extent* extent = *best;
  free_.erase(best);
  if (extent->length > length) {
    auto* rest =
        new Extent{extent->base + length, extent->length - length, true, extent, extent->next};
    if (rest->next != nullptr) rest->next->previous = rest;
    extent->next = rest;
    extent->length = length;
    free_.insert(rest);
  }
  extent->free = false;
  allocated_[extent->base] = extent;
  return extent->base;
}

size_t ExtentAllocator::Free(char* address) {
  const auto found = allocated_.find(address);
  if (found == allocated_.end()) return 0;
  Extent* extent = found->second;
  allocated_.erase(found);
  const size_t length = extent->length;
  extent->free = true;
  if (extent->next != nullptr && extent->next->free) {
    free_.erase(extent->next);
    Unite(extent, extent->next);
  }
  if (extent->previous != nullptr && extent->previous->free) {
    Extent* left = extent->previous;
    free_.erase(left);
    Unite(left, extent);
    extent = left;
  }
  free_.insert(extent);
  return length;
}

void ExtentAllocator::Unite(Extent* left, Extent* right) {
  left->length += right->length;
  left->next = right->next;
  if (right->next != nullptr) right->next->previous = left;
  delete right;
}

}  // namespace rdma_transport::memory
