// Converts an element of a dataset to an RPC reply, and back.
#pragma once

#include "absl/status/status.h"
#include "data_service/transfer.h"
#include "rpc/message.h"

namespace rdma_transport {

// Tensors of plain bytes become payloads without a copy. Others (strings, variants) are serialized
// as TensorFlow does for gRPC. Moves `result` into the reply.
rpc::Reply EncodeElement(tensorflow::data::GetElementResult result);

// Makes tensors over payloads in receive buffers, and copies the others out of the text. Returns
// DataLoss if EncodeElement() cannot have made the reply.
absl::Status DecodeElement(rpc::Response response, tensorflow::data::GetElementResult* result);

}  // namespace rdma_transport
