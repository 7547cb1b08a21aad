// Large tensors between accelerators are sent in chunks, so that one is being copied out of the
// sender's device while others are on their way or being copied into the receiver's.
//
// A tensor without its bytes announces them. Each chunk is then a tensor of bytes of its own, with
// the key of its edge and its number: in slots, over gRPC, and when a step is aborted, it is
// treated as any other.
#pragma once

#include <string>
#include <string_view>

#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// Returns the number of chunks of a tensor between accelerators: 1 if it is sent as a whole.
int ChunksOf(uint64_t bytes);
// Returns the bytes of chunk `number`, counted from 0.
uint64_t BytesOfChunk(uint64_t bytes, int number);

// Returns the key of a chunk's edge. Both keys are without frame-and-iteration suffix.
std::string EdgeOfChunk(std::string_view edge, int number);
// Returns the whole key of a chunk.
tensorflow::Rendezvous::ParsedKey KeyOfChunk(const tensorflow::Rendezvous::ParsedKey& key,
                                             int number);

// Returns the part of `tensor`, whose memory it shares.
tensorflow::Tensor ChunkOf(const tensorflow::Tensor& tensor, int number);

}  // namespace rdma_transport
