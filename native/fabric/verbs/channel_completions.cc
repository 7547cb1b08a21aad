// How a channel handles what its card reports, and the records that arrive.
#include <arpa/inet.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "fabric/verbs/channel.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {

int VerbsChannel::OnCompletion(const ibv_wc& completion) {
  if (completion.status == IBV_WC_SUCCESS) answered_at_ = device_->polled_at();
  // If the card itself broke a queue pair, its asynchronous event gives the reason.
  if (IsFlush(completion.status) && Serving(state_.load())) device_->HandleDescriptors();
  if (QueuePair::IsReceive(completion.wr_id)) return OnReceive(completion);
  OnSent(completion);
  return DeliverNews() ? 1 : 0;
}

void VerbsChannel::OnSent(const ibv_wc& completion) {
  std::lock_guard<std::mutex> lock(mu_);
  const uint32_t tag = QueuePair::TagOf(completion.wr_id);
  const size_t index = IndexOf(tag);
  if (index == pairs_.size()) return;
  Work work;
  bool itself = false;
  const bool failed = completion.status != IBV_WC_SUCCESS;
  bool known = false;
  while (pairs_[index]->TakeEnded(completion.wr_id, &work, &itself)) {
    known = itself;
    if (itself && failed) break;
    if (work.consumes_receive()) ++states_[index].confirmed;
    if (work.kind == Work::Kind::kBatch) {
      outbox_.OnWritten(work);
      NoteDelivered();
    } else if (work.kind == Work::Kind::kBind) {
      windows_.OnBound(work.window);
      transfers_.EndBind(index);
    } else if (work.last) {
      transfers_.OnEnded(index, work);
      LaneOf(work.kind).OnEnded(work.share);
    }
    if (itself) break;
  }
  if (!failed) AdvanceLanes();
  if (OnPairCompletion(index, completion, work, known)) return Pump();
  if (failed) {
    if (IsFlush(completion.status)) {
      ++flushed_;
      if (state_.load() == State::kBroken) return;
    } else if (MayBeThePort(completion.status)) {
      pairs_[index]->adapter()->NoteFailure(device_->polled_at());
    }
    BreakLocked(CompletionError(completion.status, completion.vendor_err, NameOf(work), route_));
    return;
  }
  Pump();
}

int VerbsChannel::OnReceive(const ibv_wc& completion) {
  size_t index = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    index = IndexOf(QueuePair::TagOf(completion.wr_id));
    if (index == pairs_.size() || completion.qp_num != pairs_[index]->number()) return 0;
    pairs_[index]->OnReceive();
    if (completion.status != IBV_WC_SUCCESS) {
      OnReceiveFailed(index, completion);
      return 0;
    }
    if (IsLeft(index)) return 0;  // the peer sends it again
    ++states_[index].arrived;
  }
  const Immediate immediate = Immediate::Decode(ntohl(completion.imm_data));
  Status status;
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
    status = Status(Code::kDataLoss, "the peer sent what is not part of the protocol");
  } else if (immediate.IsGone()) {
    status = Status(Code::kUnavailable, "the peer cannot go on through another port");
  } else if (immediate.IsPairDown() || immediate.IsArrived()) {
    std::lock_guard<std::mutex> lock(mu_);
    status = HandleSignal(index, immediate);
  } else if (index != main_) {
    status = Status(Code::kDataLoss, "a notification on a queue pair that carries none");
  } else if (immediate.IsRingRequest()) {
    status = OnRingRequest(immediate.units * kRingGranule);
  } else if (immediate.credit) {
    std::lock_guard<std::mutex> lock(mu_);
    status = OnCredit(immediate);
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
  const Status replenished = pairs_[index]->Replenish();
  if (!replenished.ok() && !FailPair(index, replenished)) {
    BreakLocked(replenished);
    return 1;
  }
  Immediate credit;
  while (inbox_.TakeCredit(&credit)) outbox_.SendCredit(credit);
  AdvanceLanes();
  Pump();
  if (main().waiting_credits() > credit_receives_) {
    PartLocked(
        Status(Code::kDataLoss, "the peer sends on without using the room that was released"));
  }
  return 1;
}

void VerbsChannel::OnReceiveFailed(size_t i, const ibv_wc& completion) {
  if (IsFlush(completion.status)) ++flushed_;
  if (states_[i].phase == PairState::Phase::kFailed) return SettlePair(i, Now());
  if (IsLeft(i) || state_.load() == State::kBroken) return;
  const Status reason =
      CompletionError(completion.status, completion.vendor_err, "a receive", route_);
  if (!MayBeThePort(completion.status) || !FailPair(i, reason)) BreakLocked(reason);
}

Status VerbsChannel::HandleBatch(const Immediate& immediate) {
  if (immediate.Moved()) {
    std::lock_guard<std::mutex> lock(mu_);
    Inbox::Ring old;
    RDMA_RETURN_IF_ERROR(inbox_.TakeNext(&old));
    windows_.Revoke(old.key);
  }
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
    case RecordKind::kNotification:
      if (!greeted_) break;
      // Also deliver while closing: the peer's card has confirmed that the notification arrived.
      if (const auto handler = handler_.lock()) handler->OnNotify(record.data(), record.size());
      return OkStatus();
    case RecordKind::kRegion:
      if (!greeted_) break;
      {
        std::lock_guard<std::mutex> lock(mu_);
        return transfers_.Learn(record, pairs_.size());
      }
    case RecordKind::kForget: {
      uint64_t key = 0;
      if (record.size() != sizeof(key)) break;
      std::memcpy(&key, record.data(), sizeof(key));
      std::lock_guard<std::mutex> lock(mu_);
      transfers_.Forget(key);
      return OkStatus();
    }
    case RecordKind::kHello:
    case RecordKind::kAccept:
      return HandleGreeting(kind, record);
    case RecordKind::kConnected:
      if (!greeted_) break;
      return HandleConnected();
    case RecordKind::kRing:
      if (!greeted_) break;
      return OnRing(record);
    case RecordKind::kRingEnd:
      if (!greeted_) break;
      return OnRingEnd(record);
    case RecordKind::kMoved:
      return OkStatus();
    case RecordKind::kPairOffer:
    case RecordKind::kPairAnswer:
    case RecordKind::kPairUp:
    case RecordKind::kPairReady: {
      if (!greeted_) break;
      std::lock_guard<std::mutex> lock(mu_);
      return Serving(state_.load()) ? HandlePairRecord(kind, record) : OkStatus();
    }
    case RecordKind::kBye:
      return Status(Code::kUnavailable,
                    "the peer closed the channel: " + Printable(record, kMaxReason));
  }
  return Status(Code::kDataLoss, "an unexpected record in the ring of notifications");
}

bool VerbsChannel::DeliverNews() {
  std::vector<Transfers::Ended> ended;
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
