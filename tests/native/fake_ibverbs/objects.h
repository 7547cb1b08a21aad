// The verbs objects. Each begins with the structure that libibverbs would hand out.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "frame.h"

namespace fake_ibverbs {

using Nanos = int64_t;
struct Fake;

struct Device : ibv_device {
  uint64_t guid = 0;
};

// An eventfd that is readable exactly while its owner's queue has entries: only changed under the
// lock. Its O_NONBLOCK is the application's.
struct EventFd {
  int fd = -1;
  bool raised = false;
  bool Open();
  void Close();
  void Set(bool readable);
};

struct Context : verbs_context {
  Fake* fake = nullptr;
  Device* owner = nullptr;
  bool fatal = false;
  EventFd ready;
  std::deque<ibv_async_event> events;
  // PDs, CQs and channels.
  int users = 0;
};

struct Pd : ibv_pd {
  int users = 0;
};

struct Mr : ibv_mr {
  // Where the bytes are: at `addr`, or a mapping of a DMA-BUF.
  char* bytes = nullptr;
  bool mapped = false;
  uint64_t iova = 0;
  unsigned int access = 0;
};

struct Cq;
struct Qp;

struct Channel : ibv_comp_channel {
  EventFd ready;
  std::deque<Cq*> events;
};

struct Completion {
  ibv_wc wc = {};
  // The entry of the send or receive queue that is free once this has been polled.
  bool of_send = false;
  uint64_t index = 0;
};

enum class Armed { kNo, kSolicited, kAll };

struct Cq : ibv_cq {
  std::deque<Completion> entries;
  Armed armed = Armed::kNo;
  bool dead = false;
  int users = 0;
  // Events handed out that nobody acked yet.
  int64_t unacked_completion_events = 0;
  int64_t unacked_async_events = 0;
};

struct SendRequest {
  uint64_t wr_id = 0;
  uint64_t index = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  bool signaled = false;
  bool solicited = false;
  bool is_inline = false;
  uint32_t imm = 0;
  uint64_t remote_addr = 0;
  uint32_t rkey = 0;
  uint64_t length = 0;
  std::vector<ibv_sge> pieces;
  std::string inline_data;
  // Injected, unless IBV_WC_SUCCESS.
  ibv_wc_status forced = IBV_WC_SUCCESS;
  uint32_t vendor_err = 0;
};

struct ReceiveRequest {
  uint64_t wr_id = 0;
  uint64_t index = 0;
  uint64_t length = 0;
  std::vector<ibv_sge> pieces;
};

// The first of the send requests, while it is under way.
struct Requester {
  bool running = false;
  bool checked = false;
  bool request_sent = false;
  uint64_t link = 0;
  uint64_t moved = 0;
  // Requests behind the first that were sent as well.
  uint32_t ahead = 0;
  uint32_t psn = 0;
  uint32_t attempt = 0;
  int receiver_not_ready = 0;
  Nanos not_before = 0;
  // Since when nothing came through, and how often it was tried; 0 while the peer answers.
  Nanos lost_since = 0;
  int64_t lost = 0;
};

// The message that the peer's requester is about.
struct Responder {
  bool running = false;
  bool repeated = false;
  // Whether one has ended, so that those before `psn` can come again.
  bool any = false;
  uint64_t link = 0;
  uint64_t moved = 0;
  uint32_t psn = 0;
  Frame request;
};

// Bytes of a write that the requester knows to be there, and the application does not see yet.
struct Placement {
  Nanos due = 0;
  char* to = nullptr;
  std::string bytes;
  bool overtaken = false;  // by receives
};

struct Qp : ibv_qp {
  // The card's state; ibv_qp::state is what the application last asked for.
  ibv_qp_state now = IBV_QPS_RESET;
  ibv_qp_attr attr = {};
  ibv_qp_cap cap = {};
  bool signal_all = false;
  bool established = false;
  std::deque<SendRequest> sends;
  std::deque<ReceiveRequest> receives;
  uint64_t sends_posted = 0;
  uint64_t sends_reclaimed = 0;
  uint64_t receives_posted = 0;
  uint64_t receives_reclaimed = 0;
  Requester requester;
  Responder responder;
  // In the order in which they came.
  std::deque<Placement> placements;
  int64_t unacked_async_events = 0;
};

inline Context* ContextOf(const ibv_context* context) {
  return static_cast<Context*>(verbs_get_ctx(const_cast<ibv_context*>(context)));
}

}  // namespace fake_ibverbs
