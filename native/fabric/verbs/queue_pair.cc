#include "fabric/verbs/queue_pair.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "fabric/verbs/errors.h"
#include "fabric/verbs/reach.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr int kChain = 32;  // work requests per doorbell
constexpr uint32_t kInlineWish = 220;
// Retries without limit. They do not occur, because the receiver has a receive for every batch it
// may be sent.
constexpr uint8_t kRnrRetryForEver = 7;
constexpr uint8_t kMinRnrTimer = 12;  // 640 us
constexpr uint32_t kPsnMask = 0xffffff;

// Returns the exponent n of 4.096 us * 2^n.
uint8_t TimeoutExponent(Nanos timeout) {
  uint8_t exponent = 1;
  while (exponent < 31 && (Nanos{4096} << exponent) < timeout) ++exponent;
  return exponent;
}

}  // namespace

std::string NameOf(const Work& work) {
  static constexpr const char* kNames[] = {"a write", "a read", "a notification", "a credit"};
  std::string name = kNames[static_cast<int>(work.kind)];
  if (work.length > 0) name += " of " + std::to_string(work.length) + " bytes";
  return name;
}

QueuePair::~QueuePair() {
  if (pair_ != nullptr && adapter_->Usable()) adapter_->Dispose(pair_, queue_, reserved_);
}

Status QueuePair::Create(int depth, int receives) {
  const ibv_device_attr& device = adapter_->port().attributes;
  depth = std::min(depth, device.max_qp_wr);
  receives = std::min(receives, device.max_qp_wr);
  reserved_ = depth + receives;
  RDMA_RETURN_IF_ERROR(adapter_->ReserveCompletions(reserved_, &queue_));
  ibv_qp_init_attr wanted = {};
  wanted.qp_context = reinterpret_cast<void*>(uintptr_t{tag_});
  wanted.send_cq = queue_->get();
  wanted.recv_cq = queue_->get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap.max_send_wr = static_cast<uint32_t>(depth);
  wanted.cap.max_recv_wr = static_cast<uint32_t>(std::max(receives, 1));
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = kInlineWish;
  ibv_qp_init_attr given = wanted;
  pair_ = adapter_->library().create_qp(adapter_->domain(), &given);
  if (pair_ == nullptr && errno == EINVAL) {  // the device does not support this much inline data
    given = wanted;
    given.cap.max_inline_data = 0;
    pair_ = adapter_->library().create_qp(adapter_->domain(), &given);
  }
  if (pair_ == nullptr) {
    const Status failed = CreationError(errno, "ibv_create_qp", adapter_->Name(), "queue pairs",
                                        adapter_->queue_pairs(), device.max_qp);
    queue_->Release(reserved_);
    return failed;
  }
  adapter_->CountQueuePair();
  depth_ = static_cast<uint32_t>(depth);  // as reserved; the device may have granted more
  inline_max_ = given.cap.max_inline_data;
  receives_ = receives;
  first_psn_ = static_cast<uint32_t>(Random64()) & kPsnMask;
  return ToInit();
}

Status QueuePair::ToInit() {
  const Port& port = adapter_->port();
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = port.pkey_index;
  attributes.port_num = port.number;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  const int error = adapter_->library().modify_qp(
      pair_, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  return error == 0 ? OkStatus() : VerbError(error, "ibv_modify_qp to INIT", adapter_->Name());
}

Status QueuePair::Connect(const ChannelAddress& peer) {
  const Port& port = adapter_->port();
  const VerbsSettings& settings = adapter_->settings();
  signal_bytes_ = peer.ring_size / 8;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min<uint32_t>(port.mtu, peer.mtu));
  attributes.dest_qp_num = peer.number;
  attributes.rq_psn = peer.first_psn;
  attributes.max_dest_rd_atomic =
      static_cast<uint8_t>(std::min(port.attributes.max_qp_rd_atom, 255));
  attributes.min_rnr_timer = kMinRnrTimer;
  attributes.ah_attr.port_num = port.number;
  attributes.ah_attr.sl = static_cast<uint8_t>(settings.service_level);
  SetDestination(port, peer, settings.traffic_class, &attributes.ah_attr);
  int error = adapter_->library().modify_qp(pair_, &attributes,
                                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                                IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) return VerbError(error, "ibv_modify_qp to RTR", adapter_->Name());
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = TimeoutExponent(settings.retry_timeout);
  attributes.retry_cnt = static_cast<uint8_t>(settings.retries);
  attributes.rnr_retry = kRnrRetryForEver;
  attributes.sq_psn = first_psn_;
  attributes.max_rd_atomic = static_cast<uint8_t>(
      std::clamp<uint32_t>(peer.read_depth, 1, std::max(port.attributes.max_qp_init_rd_atom, 1)));
  error =
      adapter_->library().modify_qp(pair_, &attributes,
                                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                        IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return error == 0 ? OkStatus() : VerbError(error, "ibv_modify_qp to RTS", adapter_->Name());
}

bool QueuePair::WantsSignal(const Work& work) {
  ++unsignalled_;
  unsignalled_bytes_ += work.length;
  const bool wanted = work.kind == Work::Kind::kRead || work.signaled ||
                      unsignalled_ >= std::max(depth_ / 4, 1u) ||
                      unsignalled_bytes_ >= signal_bytes_;
  if (wanted) {
    unsignalled_ = 0;
    unsignalled_bytes_ = 0;
  }
  return wanted;
}

void QueuePair::Fill(const Work& work, ibv_send_wr* request, ibv_sge* element) const {
  static constexpr ibv_wr_opcode kOpcodes[] = {
      IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM};
  *request = {};
  request->opcode = kOpcodes[static_cast<int>(work.kind)];
  request->imm_data = htonl(work.immediate);
  request->wr.rdma.remote_addr = work.remote;
  request->wr.rdma.rkey = work.rkey;
  if (work.length == 0) return;
  const bool inlined = work.length <= inline_max_ && work.kind != Work::Kind::kRead;
  const auto local = reinterpret_cast<uint64_t>(work.local);
  // The CPU copies inline data from its local address.
  *element = {inlined ? local : local + work.local_end.shift, work.length, work.local_end.lkey};
  request->sg_list = element;
  request->num_sge = 1;
  if (inlined) request->send_flags |= IBV_SEND_INLINE;
}

Status QueuePair::Pump() {
  while (!waiting_.empty() && !broken_) {
    ibv_send_wr requests[kChain];
    ibv_sge elements[kChain];
    int count = 0;
    Adapter::Traffic moved;
    bool last_unsignaled = false;  // the last piece of a transfer was posted unsignaled
    while (count < kChain && !waiting_.empty() && posted_.size() < depth_) {
      const Work& work = waiting_.front();
      (work.kind == Work::Kind::kRead ? moved.read : moved.written) += work.length;
      Fill(work, &requests[count], &elements[count]);
      requests[count].wr_id = uint64_t{tag_} << 32 | (++sequence_ & kSequenceMask);
      if (WantsSignal(work)) {
        requests[count].send_flags |= IBV_SEND_SIGNALED;
        last_unsignaled = false;
      } else {
        last_unsignaled |= work.last;
      }
      if (count > 0) requests[count - 1].next = &requests[count];
      posted_.push_back({work, sequence_ & kSequenceMask});
      if (work.kind == Work::Kind::kCredit) --waiting_credits_;
      waiting_.pop_front();
      ++count;
    }
    if (count == 0) return OkStatus();
    adapter_->Count(moved);
    if (last_unsignaled || posted_.size() == depth_) {
      requests[count - 1].send_flags |= IBV_SEND_SIGNALED;
      unsignalled_ = 0;
      unsignalled_bytes_ = 0;
    }
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(pair_, requests, &bad);
    if (error != 0) return VerbError(error, "ibv_post_send", adapter_->Name());
  }
  return OkStatus();
}

bool QueuePair::TakeEnded(uint64_t wr_id, Work* work, bool* itself) {
  const uint64_t sequence = wr_id & kSequenceMask;
  if (posted_.empty()) return false;
  const uint64_t behind = (sequence - posted_.front().sequence) & kSequenceMask;
  if (behind >= posted_.size()) return false;
  *work = posted_.front().work;
  *itself = behind == 0;
  posted_.pop_front();
  return true;
}

Status QueuePair::Replenish() {
  while (receives_posted_ < receives_ && !broken_) {
    ibv_recv_wr requests[kChain] = {};
    const int count = std::min(kChain, receives_ - receives_posted_);
    for (int i = 0; i < count; ++i) {
      requests[i].wr_id = uint64_t{tag_} << 32 | kReceiveBit;
      requests[i].next = i + 1 < count ? &requests[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_recv(pair_, requests, &bad);
    if (error != 0) return VerbError(error, "ibv_post_recv", adapter_->Name());
    receives_posted_ += count;
  }
  return OkStatus();
}

void QueuePair::Break() {
  if (std::exchange(broken_, true)) return;
  waiting_.clear();
  waiting_credits_ = 0;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  const int error = adapter_->library().modify_qp(pair_, &attributes, IBV_QP_STATE);
  if (error != 0) {
    Log(LogLevel::kDebug, VerbError(error, "ibv_modify_qp to ERR", adapter_->Name()).message());
  }
  if (std::exchange(unsignalled_, 0) == 0) return;
  // The completion of this request, although flushed, confirms the unsignaled requests before it.
  ibv_send_wr last;
  Fill(Work(), &last, nullptr);
  last.wr_id = uint64_t{tag_} << 32 | (++sequence_ & kSequenceMask);
  last.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(pair_, &last, &bad) == 0) {
    posted_.push_back({Work(), sequence_ & kSequenceMask});
  }
}

}  // namespace rdma_transport::fabric::verbs
