// An element of a dataset as the reply of an exchange, and back.
#pragma once

#include "absl/status/status.h"
#include "data_service/transfer.h"
#include "rpc/message.h"

namespace rdma_transport {

// Tensors of plain bytes become payloads as they lie; others (strings, variants) are serialised as
// TensorFlow does it for gRPC. `result` is moved into the reply.
rpc::Reply EncodeElement(tensorflow::data::GetElementResult result);

// Makes tensors over the payloads that landed, and copies the others out of the text. DataLoss: not
// what EncodeElement() makes.
absl::Status DecodeElement(rpc::Response response, tensorflow::data::GetElementResult* result);

}  // namespace rdma_transport
