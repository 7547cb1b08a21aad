// An element of a dataset as the reply of an exchange, and back.
#pragma once

#include "absl/status/status.h"
#include "data_service/transfer.h"
#include "exchange/message.h"

namespace rdma_transport {

// Tensors of plain bytes become payloads as they lie; others (strings, variants) are serialised as
// TensorFlow does it for gRPC. `result` is moved into the reply.
exchange::Reply EncodeElement(tensorflow::data::GetElementResult result);

// Makes tensors over the payloads that landed, and copies the others out of the text. DataLoss: not
// what EncodeElement() makes.
absl::Status DecodeElement(exchange::Answer answer, tensorflow::data::GetElementResult* result);

}  // namespace rdma_transport
