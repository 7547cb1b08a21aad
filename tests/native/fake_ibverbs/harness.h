// For tests of the fake library: finds its functions as a user would, and makes connected ends.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control.h"

#undef ibv_query_port
#undef ibv_reg_mr

namespace fake_ibverbs::testing {

// Functions of the library, found by their names.
// clang-format off
#define FAKE_IBVERBS_FUNCTIONS(X) \
  X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_open_device) \
  X(ibv_close_device) X(ibv_query_port) X(ibv_query_gid) X(ibv_alloc_pd) X(ibv_dealloc_pd) \
  X(ibv_reg_mr) X(ibv_dereg_mr) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel) \
  X(ibv_create_cq) X(ibv_destroy_cq) X(ibv_resize_cq) X(ibv_get_cq_event) X(ibv_ack_cq_events) \
  X(ibv_create_qp) X(ibv_modify_qp) X(ibv_query_qp) X(ibv_destroy_qp) X(ibv_get_async_event) \
  X(ibv_ack_async_event) X(fake_ibverbs_set) X(fake_ibverbs_break_path) X(fake_ibverbs_stats) \
  X(fake_ibverbs_reset) X(ibv_reg_mr_iova2)
// clang-format on

struct Verbs {
#define FAKE_IBVERBS_DECLARE(name) decltype(&::name) name = nullptr;
  FAKE_IBVERBS_FUNCTIONS(FAKE_IBVERBS_DECLARE)
#undef FAKE_IBVERBS_DECLARE

  Verbs() {
    void* library = dlopen(FAKE_IBVERBS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
#define FAKE_IBVERBS_FIND(function)                                           \
  function = reinterpret_cast<decltype(function)>(dlsym(library, #function)); \
  if (function == nullptr) std::abort();
    FAKE_IBVERBS_FUNCTIONS(FAKE_IBVERBS_FIND)
#undef FAKE_IBVERBS_FIND
    dlclose(library);
  }
};

inline const Verbs& V() {
  static const Verbs* verbs = new Verbs;
  return *verbs;
}

inline FakeIbverbsStats Stats() {
  FakeIbverbsStats stats;
  V().fake_ibverbs_stats(&stats);
  return stats;
}

template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

// What a peer must know.
struct EndAddress {
  uint32_t qp_num;
  ibv_gid gid;
  uint64_t addr;
  uint32_t rkey;
};

struct EndOptions {
  ibv_context* context = nullptr;
  size_t bytes = 4096;
  int cqe = 256;
  ibv_qp_cap cap = {64, 64, 4, 4, 64};
  int access = kAllAccess;
  int gid_index = 3;
  bool with_channel = false;
};

// One queue pair with a completion queue and registered memory of its own.
class End {
 public:
  explicit End(const EndOptions& options) : options_(options), memory(options.bytes) {
    const Verbs& v = V();
    context = options.context;
    pd = v.ibv_alloc_pd(context);
    if (options.with_channel) channel = v.ibv_create_comp_channel(context);
    cq = v.ibv_create_cq(context, options.cqe, this, channel, 0);
    mr = v.ibv_reg_mr(pd, memory.data(), memory.size(), options.access);
    ibv_qp_init_attr init = {};
    init.send_cq = init.recv_cq = cq;
    init.cap = options.cap;
    init.qp_type = IBV_QPT_RC;
    qp = v.ibv_create_qp(pd, &init);
    if (qp == nullptr) std::abort();
  }
  ~End() {
    const Verbs& v = V();
    if (qp != nullptr) {
      EXPECT_EQ(v.ibv_destroy_qp(qp), 0);
    }
    if (mr != nullptr) {
      EXPECT_EQ(v.ibv_dereg_mr(mr), 0);
    }
    if (cq != nullptr) {
      EXPECT_EQ(v.ibv_destroy_cq(cq), 0);
    }
    if (channel != nullptr) {
      EXPECT_EQ(v.ibv_destroy_comp_channel(channel), 0);
    }
    EXPECT_EQ(v.ibv_dealloc_pd(pd), 0);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  EndAddress Address() const {
    EndAddress address = {qp->qp_num, {}, reinterpret_cast<uintptr_t>(memory.data()), mr->rkey};
    V().ibv_query_gid(context, 1, options_.gid_index, &address.gid);
    return address;
  }

  int ToInit() {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = static_cast<unsigned>(options_.access);
    return V().ibv_modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  }

  static constexpr int kToRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  ibv_qp_attr RtrAttr(const EndAddress& peer) const {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer.qp_num;
    attr.rq_psn = 100;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.dgid = peer.gid;
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(options_.gid_index);
    attr.ah_attr.grh.hop_limit = 64;
    return attr;
  }
  int ToRtr(const EndAddress& peer) {
    ibv_qp_attr attr = RtrAttr(peer);
    return V().ibv_modify_qp(qp, &attr, kToRtr);
  }

  static constexpr int kToRts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  int ToRts(uint8_t rnr_retry = 7) {
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = rnr_retry;
    attr.sq_psn = 100;
    attr.max_rd_atomic = 4;
    return V().ibv_modify_qp(qp, &attr, kToRts);
  }
  int ToState(ibv_qp_state state) {
    ibv_qp_attr attr = {};
    attr.qp_state = state;
    return V().ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  }
  ibv_qp_state State() {
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    EXPECT_EQ(V().ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
    return attr.qp_state;
  }
  bool Connect(const EndAddress& peer) { return ToInit() == 0 && ToRtr(peer) == 0 && ToRts() == 0; }

  ibv_sge Piece(size_t offset, size_t length) {
    return {reinterpret_cast<uintptr_t>(memory.data()) + offset, static_cast<uint32_t>(length),
            mr->lkey};
  }
  int Send(ibv_wr_opcode opcode, std::vector<ibv_sge> pieces, const EndAddress& to,
           size_t offset = 0, unsigned flags = IBV_SEND_SIGNALED, uint64_t id = 1) {
    ibv_send_wr wr = {};
    wr.wr_id = id;
    wr.sg_list = pieces.data();
    wr.num_sge = static_cast<int>(pieces.size());
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 0x01020304;
    wr.wr.rdma.remote_addr = to.addr + offset;
    wr.wr.rdma.rkey = to.rkey;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp, &wr, &bad);
    EXPECT_EQ(bad, error == 0 ? nullptr : &wr);
    return error;
  }
  int Receive(std::vector<ibv_sge> pieces = {}, uint64_t id = 2) {
    ibv_recv_wr wr = {};
    wr.wr_id = id;
    wr.sg_list = pieces.data();
    wr.num_sge = static_cast<int>(pieces.size());
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }
  // The next completion.
  ibv_wc Wait() {
    ibv_wc wc = {};
    int polled = 0;
    EXPECT_TRUE(Eventually([&] { return (polled = ibv_poll_cq(cq, 1, &wc)) != 0; }));
    EXPECT_EQ(polled, 1);
    return wc;
  }
  bool Quiet() {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ibv_wc wc;
    return ibv_poll_cq(cq, 1, &wc) == 0;
  }

 private:
  const EndOptions options_;

 public:
  std::vector<char> memory;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  ibv_qp* qp = nullptr;
};

inline ibv_context* OpenDevice(const std::string& name = "fake_0") {
  ibv_device** list = V().ibv_get_device_list(nullptr);
  if (list == nullptr) return nullptr;
  ibv_context* context = nullptr;
  for (ibv_device** device = list; *device != nullptr; ++device) {
    if (V().ibv_get_device_name(*device) == name) context = V().ibv_open_device(*device);
  }
  const int error = errno;
  V().ibv_free_device_list(list);
  errno = error;
  return context;
}

class FakeIbverbsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    V().fake_ibverbs_reset();
    ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "40"), 0);
    context_ = OpenDevice();
    ASSERT_NE(context_, nullptr);
  }
  // Nothing may be left behind.
  void TearDown() override {
    ends_.clear();
    EXPECT_EQ(V().ibv_close_device(context_), 0);
    const FakeIbverbsStats stats = Stats();
    EXPECT_EQ(stats.device_lists + stats.contexts + stats.pds + stats.mrs + stats.channels +
                  stats.cqs + stats.qps + stats.registered_bytes,
              0U);
  }

  EndOptions Options() {
    EndOptions options;
    options.context = context_;
    return options;
  }
  End& Make(const EndOptions& options) {
    ends_.push_back(std::make_unique<End>(options));
    return *ends_.back();
  }
  // Connected, with 0, 1, 2... in the memory of the first and zeros in that of the second.
  std::pair<End&, End&> Pair(const EndOptions& options) {
    End& a = Make(options);
    End& b = Make(options);
    EXPECT_TRUE(a.Connect(b.Address()));
    EXPECT_TRUE(b.Connect(a.Address()));
    std::iota(a.memory.begin(), a.memory.end(), 0);
    return {a, b};
  }
  std::pair<End&, End&> Pair() { return Pair(Options()); }

  // Takes the next asynchronous event, and acks it.
  ibv_event_type NextAsync() {
    ibv_async_event event = {};
    EXPECT_EQ(V().ibv_get_async_event(context_, &event), 0);
    V().ibv_ack_async_event(&event);
    return event.event_type;
  }
  void ExpectNoAsync() {
    pollfd wanted = {context_->async_fd, POLLIN, 0};
    EXPECT_EQ(poll(&wanted, 1, 0), 0);
  }
  static void ExpectDone(const ibv_wc& wc, uint64_t id, ibv_wc_opcode opcode) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.opcode, opcode);
  }

  ibv_context* context_ = nullptr;
  std::vector<std::unique_ptr<End>> ends_;
};

}  // namespace fake_ibverbs::testing
