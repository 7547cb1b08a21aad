#include "protocol/dynamic_sender.h"

#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/log.h"
#include "protocol/counters.h"
#include "protocol/staging.h"
#include "protocol/wire.h"

namespace rdma_transport {
namespace {

TensorHeader HeaderOf(const Outgoing& tensor, MessageType type) {
  TensorHeader header = {};
  header.type = type;
  header.flags = tensor.dead ? kDead : 0;
  header.dtype = tensor.dtype;
  header.step = tensor.step;
  header.bytes = tensor.bytes;
  return header;
}

}  // namespace

SendOutcome DynamicSender::SendInline(const Outgoing& tensor) {
  TensorHeader header = HeaderOf(tensor, MessageType::kInline);
  const char* data = tensor.data;
  std::string copy;
  if (context_.settings->checksum && tensor.bytes > 0) {
    // The checksum must match what is sent.
    if (tensor.mutable_source) data = copy.assign(tensor.data, tensor.bytes).data();
    header.flags |= kChecked;
    header.checksum = ChecksumOf(data, tensor.bytes);
  }
  const TensorFrame frame(&header, tensor.dims, tensor.rank, tensor.key, data, tensor.bytes);
  // Counted first, because statistics may be read as soon as it is sent.
  context_.traffic->Sent(Mode::kInline).Add(tensor.bytes);
  GlobalCounters().inline_copied_bytes.fetch_add(tensor.bytes, std::memory_order_relaxed);
  SendOutcome outcome;
  outcome.status = channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake,
                                    &outcome.number, fabric::After::Nothing());
  return outcome;
}

SendOutcome DynamicSender::SendDescriptor(Outgoing* tensor) {
  TensorHeader header = HeaderOf(*tensor, MessageType::kDescriptor);
  if (tensor->blocks_until_release) header.flags |= kBlocksUntilRelease;
  fabric::RemoteSpan span;
  if (!tensor->mutable_source && channel_->Owns(tensor->data, &span)) {
    header.flags |= kReceiverOwned;
  } else if (tensor->mutable_source || !channel_->Locate(tensor->data, &span) ||
             span.length < tensor->bytes) {
    if (tensor->on_device) return {OkStatus(), "memory of a device that the peer cannot read"};
    if (!Stage(context_.arena, context_.slots, /*site=*/{}, tensor))
      return {OkStatus(), "no memory in the arena for a copy"};
    if (!channel_->Locate(tensor->data, &span)) {
      return {Status(Code::kInternal, "a staged tensor outside the arena")};
    }
  }
  if ((header.flags & kReceiverOwned) == 0) {
    const Status shared = channel_->Share(span.key);
    if (shared.code() == Code::kResourceExhausted) {
      Log(LogLevel::kWarning, shared.message());
      return {OkStatus(), "its memory cannot be registered with the fabric"};
    }
    if (!shared.ok()) return {shared};
  }
  if (context_.settings->checksum && !tensor->on_device) {
    header.flags |= kChecked;
    header.checksum = ChecksumOf(tensor->data, tensor->bytes);
  }
  const uint64_t buffer_id = outstanding_->Add(std::move(tensor->owner));
  header.source = {buffer_id, span.key, span.offset};
  const TensorFrame frame(&header, tensor->dims, tensor->rank, tensor->key, nullptr, 0);
  context_.traffic->Sent(Mode::kDynamic).Add(tensor->bytes);
  SendOutcome outcome;
  outcome.mode = Mode::kDynamic;
  outcome.handle = buffer_id;
  outcome.status = channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake,
                                    &outcome.number, fabric::After::Nothing());
  if (!outcome.status.ok()) outstanding_->Release(buffer_id);
  return outcome;
}

}  // namespace rdma_transport
