// How a channel handles what its card reports, and the records that arrive.
#include <arpa/inet.h>

#include <utility>
#include <vector>

#include "base/printable.h"
#include "fabric/verbs/channel.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {
namespace {

// Credits that leave as the peer takes others.
constexpr int kMaxWaitingCredits = 40;

}  // namespace

int VerbsChannel::OnCompletion(const ibv_wc& completion) {
  if (completion.status == IBV_WC_SUCCESS) answered_at_ = device_->polled_at();
  // If the card itself broke a queue pair, its asynchronous event gives the reason. If the port has
  // gone down, new channels must not use it.
  if (completion.status != IBV_WC_SUCCESS && Serving(state_.load())) device_->HandleDescriptors();
  if (QueuePair::IsReceive(completion.wr_id)) return OnReceive(completion);
  OnSent(completion);
  return DeliverNews() ? 1 : 0;
}

void VerbsChannel::OnSent(const ibv_wc& completion) {
  std::lock_guard<std::mutex> lock(mu_);
  if (pair_ == nullptr) return;
  Work work;
  bool itself = false;
  const bool failed = completion.status != IBV_WC_SUCCESS;
  while (pair_->TakeEnded(completion.wr_id, &work, &itself)) {
    if (itself && failed) break;
    if (work.kind == Work::Kind::kBatch) {
      outbox_.OnWritten(work);
      NoteDelivered();
    } else if (work.last) {
      transfers_.End(work.cookie, OkStatus());
    }
    if (itself) break;
  }
  if (!failed) return Pump();
  if (IsFlush(completion.status)) {
    ++flushed_;
    if (state_.load() == State::kBroken) return;
  } else if (MayBeThePort(completion.status)) {
    device_->adapter().NoteFailure();
  }
  BreakLocked(CompletionError(completion.status, completion.vendor_err, NameOf(work), route_));
}

int VerbsChannel::OnReceive(const ibv_wc& completion) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (pair_ == nullptr) return 0;
    pair_->OnReceive();
    if (completion.status != IBV_WC_SUCCESS) {
      if (IsFlush(completion.status)) ++flushed_;
      BreakLocked(CompletionError(completion.status, completion.vendor_err, "a receive", route_));
      return 0;
    }
  }
  const Immediate immediate = Immediate::Decode(ntohl(completion.imm_data));
  Status status;
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
    status = Status(Code::kDataLoss, "the peer sent what is not part of the protocol");
  } else if (immediate.credit) {
    std::lock_guard<std::mutex> lock(mu_);
    status = outbox_.OnCredit(immediate);
  } else if (!ignore_input_) {
    status = HandleBatch(immediate);
  }
  if (!status.ok()) ignore_input_ = true;
  std::lock_guard<std::mutex> lock(mu_);
  if (status.code() == Code::kUnavailable) {
    BreakLocked(status);  // the peer has closed the channel
  } else if (!status.ok()) {
    PartLocked(status);
  }
  if (!Serving(state_.load())) return 1;
  const Status replenished = pair_->Replenish();
  if (!replenished.ok()) {
    BreakLocked(replenished);
    return 1;
  }
  Immediate credit;
  while (inbox_.TakeCredit(&credit)) outbox_.SendCredit(credit);
  Pump();
  if (pair_->waiting_credits() > kMaxWaitingCredits) {
    PartLocked(
        Status(Code::kDataLoss, "the peer sends on without using the room that was released"));
  }
  return 1;
}

Status VerbsChannel::HandleBatch(const Immediate& immediate) {
  RDMA_RETURN_IF_ERROR(inbox_.Begin(immediate));
  while (true) {
    RecordKind kind{};
    std::string_view record;
    bool more = false;
    RDMA_RETURN_IF_ERROR(inbox_.Next(&kind, &record, &more));
    if (!more) return OkStatus();
    RDMA_RETURN_IF_ERROR(HandleRecord(kind, record));
  }
}

Status VerbsChannel::HandleRecord(RecordKind kind, std::string_view record) {
  switch (kind) {
    case RecordKind::kNotification: {
      if (!greeted_) break;
      std::string_view whole;
      RDMA_RETURN_IF_ERROR(inbox_.parts().Complete(record, &whole));
      // Also deliver while closing: the peer's card has confirmed that the notification arrived.
      if (const auto handler = handler_.lock()) handler->OnNotify(whole.data(), whole.size());
      return OkStatus();
    }
    case RecordKind::kPart:
      if (!greeted_) break;
      return inbox_.parts().Keep(record);
    case RecordKind::kRegion: {
      if (!greeted_) break;
      std::lock_guard<std::mutex> lock(mu_);
      return transfers_.AddRegion(record);
    }
    case RecordKind::kWithdraw: {
      std::lock_guard<std::mutex> lock(mu_);
      return transfers_.RemoveRegion(record);
    }
    case RecordKind::kHello:
    case RecordKind::kAccept:
      return HandleGreeting(kind, record);
    case RecordKind::kConnected:
      if (!greeted_) break;
      return HandleConnected();
    case RecordKind::kBye:
      return Status(Code::kUnavailable,
                    "the peer closed the channel: " + Printable(record, kMaxReason));
  }
  return Status(Code::kDataLoss, "an unexpected record in the ring of notifications");
}

bool VerbsChannel::DeliverNews() {
  std::vector<host::TransferEnd> ended;
  uint64_t delivered = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    ended = transfers_.TakeEnded();
    if (delivered_ != reported_) delivered = reported_ = delivered_;
  }
  if (ended.empty() && delivered == 0) return false;
  const auto handler = handler_.lock();
  if (handler == nullptr) return false;
  if (delivered != 0) handler->OnDelivered(delivered);
  for (const auto& transfer : ended) handler->OnTransfer(transfer.cookie, transfer.status);
  return true;
}

}  // namespace rdma_transport::fabric::verbs
