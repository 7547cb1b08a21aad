// Where the fake libibverbs is strict: a lenient one would hide mistakes from the tests of verbs.
// What they need of it besides, they show themselves.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <cerrno>
#include <thread>

#include "fake_ibverbs/harness.h"

namespace fake_ibverbs::testing {
namespace {

TEST_F(FakeIbverbsTest, ReadsTheSourceWhenItExecutes) {
  auto [a, b] = Pair();
  V().fake_ibverbs_break_path(true);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(5, 1)}, b.Address()), 0);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(6, 1)}, b.Address(), 1,
                   IBV_SEND_SIGNALED | IBV_SEND_INLINE),
            0);
  a.memory[5] = 99;
  a.memory[6] = 98;
  V().fake_ibverbs_break_path(false);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(b.memory[0], 99);
  EXPECT_EQ(b.memory[1], 6);
}

TEST_F(FakeIbverbsTest, WaitsForAReceiver) {
  auto [a, b] = Pair();
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {a.Piece(1, 1)}, b.Address()), 0);
  EXPECT_TRUE(Eventually([] { return Stats().rnr_naks_received > 5; }));
  EXPECT_TRUE(a.Quiet());
  EXPECT_GT(Stats().rnr_naks_sent, 5U);
  ASSERT_EQ(b.Receive(), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  ExpectDone(b.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);

  End& c = Make(Options());
  End& d = Make(Options());
  ASSERT_TRUE(d.Connect(c.Address()));
  ASSERT_TRUE(c.ToInit() == 0 && c.ToRtr(d.Address()) == 0 && c.ToRts(2) == 0);
  ASSERT_EQ(c.Send(IBV_WR_SEND, {c.Piece(1, 1)}, d.Address()), 0);
  EXPECT_EQ(c.Wait().status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(c.State(), IBV_QPS_ERR);
  EXPECT_EQ(d.State(), IBV_QPS_RTS);
}

TEST_F(FakeIbverbsTest, QueuesAreAsLongAsAskedFor) {
  EndOptions options = Options();
  options.cap = {4, 2, 2, 1, 16};
  auto [a, b] = Pair(options);
  const EndAddress to = b.Address();
  for (int i = 0; i < 4; ++i) ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, to, 0, 0), 0);
  EXPECT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, to), ENOMEM);
  // Executed but never heard of: the entries are still taken.
  EXPECT_TRUE(Eventually([] { return Stats().writes == 4; }));
  EXPECT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, to), ENOMEM);

  auto [c, d] = Pair(options);
  for (unsigned i = 0; i < 4; ++i) {
    ASSERT_EQ(
        c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1)}, d.Address(), 0, i == 2 ? IBV_SEND_SIGNALED : 0),
        0);
  }
  ExpectDone(c.Wait(), 1, IBV_WC_RDMA_WRITE);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1)}, d.Address()), 0);
  }
  EXPECT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1)}, d.Address()), ENOMEM);
  for (int i = 0; i < 3; ++i) ExpectDone(c.Wait(), 1, IBV_WC_RDMA_WRITE);

  const unsigned inlined = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
  EXPECT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 17)}, d.Address(), 0, inlined), EINVAL);
  EXPECT_EQ(c.Send(IBV_WR_RDMA_READ, {c.Piece(0, 8)}, d.Address(), 0, inlined), EINVAL);
  EXPECT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1), c.Piece(0, 1), c.Piece(0, 1)}, d.Address()),
            EINVAL);
  EXPECT_EQ(c.Send(IBV_WR_TSO, {c.Piece(0, 1)}, d.Address()), EINVAL);
  EXPECT_EQ(d.Receive(), 0);
  EXPECT_EQ(d.Receive({d.Piece(0, 1), d.Piece(0, 1)}), EINVAL);
  EXPECT_EQ(d.Receive(), 0);
  EXPECT_EQ(d.Receive(), ENOMEM);
}

TEST_F(FakeIbverbsTest, AnOverrunEndsTheCompletionQueue) {
  EndOptions options = Options();
  options.cqe = 3;
  auto [a, b] = Pair(options);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  }
  EXPECT_TRUE(Eventually([] { return Stats().highest_cq_fill == 3; }));
  EXPECT_EQ(Stats().cq_overruns, 0U);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  EXPECT_EQ(NextAsync(), IBV_EVENT_CQ_ERR);
  EXPECT_EQ(NextAsync(), IBV_EVENT_QP_FATAL);
  ibv_wc wc;
  EXPECT_LT(ibv_poll_cq(a.cq, 1, &wc), 0);
  EXPECT_EQ(Stats().cq_overruns, 1U);
  EXPECT_EQ(a.State(), IBV_QPS_ERR);
}

TEST_F(FakeIbverbsTest, TellsOfCompletions) {
  const Verbs& v = V();
  EndOptions options = Options();
  options.with_channel = true;
  const std::pair<End&, End&> ends = Pair(options);
  End& a = ends.first;
  End& b = ends.second;
  const EndAddress to = b.Address();
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  const auto readable = [](int fd, int wait_ms) {
    pollfd wanted = {fd, POLLIN, 0};
    return poll(&wanted, 1, wait_ms) == 1;
  };
  const auto transfer = [&](unsigned flags) {
    ASSERT_EQ(b.Receive(), 0);
    ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {}, to, 0, IBV_SEND_SIGNALED | flags), 0);
    ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
    ExpectDone(b.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);
  };
  fcntl(b.channel->fd, F_SETFL, O_NONBLOCK);
  EXPECT_EQ(v.ibv_get_cq_event(b.channel, &cq, &cq_context), -1);
  EXPECT_EQ(errno, EAGAIN);
  // Not asked for, asked for once, and asked for what solicits only.
  transfer(0);
  EXPECT_FALSE(readable(b.channel->fd, 0));
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 0), 0);
  transfer(0);
  transfer(0);
  EXPECT_TRUE(readable(b.channel->fd, 0));
  ASSERT_EQ(v.ibv_get_cq_event(b.channel, &cq, &cq_context), 0);
  EXPECT_EQ(cq, b.cq);
  EXPECT_EQ(cq_context, &b);
  EXPECT_FALSE(readable(b.channel->fd, 0));
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  transfer(0);
  EXPECT_FALSE(readable(b.channel->fd, 0));
  transfer(IBV_SEND_SOLICITED);
  EXPECT_TRUE(readable(b.channel->fd, 0));
  ASSERT_EQ(v.ibv_get_cq_event(b.channel, &cq, &cq_context), 0);
  EXPECT_EQ(Stats().completion_events, 2U);

  // Failures solicit.
  ASSERT_EQ(ibv_req_notify_cq(b.cq, 1), 0);
  ASSERT_EQ(b.Receive(), 0);
  EXPECT_EQ(b.ToState(IBV_QPS_ERR), 0);
  EXPECT_TRUE(readable(b.channel->fd, 5000));

  // A thread may sleep in the call.
  std::thread sleeper([&channel = a.channel] {
    ibv_cq* woken = nullptr;
    void* with = nullptr;
    EXPECT_EQ(V().ibv_get_cq_event(channel, &woken, &with), 0);
    V().ibv_ack_cq_events(woken, 1);
  });
  ASSERT_EQ(ibv_req_notify_cq(a.cq, 0), 0);
  EXPECT_EQ(a.ToState(IBV_QPS_ERR), 0);
  ASSERT_EQ(a.Receive(), 0);
  sleeper.join();

  // Two events of b are not acked, and a third was never fetched.
  ASSERT_EQ(v.ibv_destroy_qp(b.qp), 0);
  b.qp = nullptr;
  EXPECT_EQ(v.ibv_destroy_cq(b.cq), EBUSY);
  v.ibv_ack_cq_events(b.cq, 2);
}

TEST_F(FakeIbverbsTest, WhatIsInUseStays) {
  const Verbs& v = V();
  EndOptions options = Options();
  options.with_channel = true;
  auto [a, b] = Pair(options);
  EXPECT_EQ(v.ibv_close_device(context_), EBUSY);
  EXPECT_EQ(v.ibv_dealloc_pd(a.pd), EBUSY);
  EXPECT_EQ(v.ibv_destroy_cq(a.cq), EBUSY);
  EXPECT_EQ(v.ibv_destroy_comp_channel(a.channel), EBUSY);
  EndAddress wrong = b.Address();
  wrong.rkey = 0;
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, wrong), 0);
  EXPECT_EQ(a.Wait().status, IBV_WC_REM_ACCESS_ERR);
  ibv_async_event event = {};
  ASSERT_EQ(v.ibv_get_async_event(context_, &event), 0);
  EXPECT_EQ(event.element.qp, b.qp);
  EXPECT_EQ(v.ibv_destroy_qp(b.qp), EBUSY);
  v.ibv_ack_async_event(&event);
  fcntl(context_->async_fd, F_SETFL, O_NONBLOCK);
  EXPECT_EQ(v.ibv_get_async_event(context_, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(v.ibv_create_cq(context_, 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(v.ibv_create_cq(context_, 8, nullptr, nullptr, 4), nullptr);
  EXPECT_EQ(v.ibv_resize_cq(a.cq, 0), EINVAL);
  EXPECT_EQ(v.ibv_resize_cq(a.cq, 1000), 0);
  EXPECT_EQ(a.cq->cqe, 1000);
}

// Whether the write of the first 100 bytes is visible at `b`. It races with the card on purpose.
__attribute__((no_sanitize("thread"), noinline)) bool Sees(const End& b, char last) {
  return b.memory[99] == last;
}

TEST_F(FakeIbverbsTest, AWriteIsVisibleBehindAReceiveOfItsOwnQueuePairOnly) {
  ASSERT_EQ(V().fake_ibverbs_set("place_late_us", "1000000000"), 0);
  const std::pair<End&, End&> first = Pair();
  const std::pair<End&, End&> second = Pair();
  End& a = first.first;
  End& b = first.second;
  End& other = second.first;
  End& peer = second.second;
  const auto write = [&](char last) {
    a.memory[99] = last;
    ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 100)}, b.Address()), 0);
    ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
    EXPECT_FALSE(Sees(b, last));
  };
  write(1);
  // Neither messages of another queue pair nor reads by it say anything.
  ASSERT_EQ(peer.Receive(), 0);
  ASSERT_EQ(other.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {}, peer.Address()), 0);
  ExpectDone(peer.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);
  ExpectDone(other.Wait(), 1, IBV_WC_RDMA_WRITE);
  ASSERT_EQ(other.Send(IBV_WR_RDMA_READ, {other.Piece(0, 8)}, peer.Address()), 0);
  ExpectDone(other.Wait(), 1, IBV_WC_RDMA_READ);
  EXPECT_FALSE(Sees(b, 1));

  ASSERT_EQ(b.Receive(), 0);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {}, b.Address()), 0);
  ExpectDone(b.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_TRUE(Sees(b, 1));

  write(2);
  ASSERT_EQ(b.Receive({b.Piece(200, 8)}), 0);
  ASSERT_EQ(a.Send(IBV_WR_SEND, {a.Piece(0, 8)}, b.Address()), 0);
  ExpectDone(b.Wait(), 2, IBV_WC_RECV);
  ExpectDone(a.Wait(), 1, IBV_WC_SEND);
  EXPECT_TRUE(Sees(b, 2));

  write(3);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_READ, {a.Piece(200, 8)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_READ);
  EXPECT_TRUE(Sees(b, 3));

  // Nothing comes after the end of a queue pair or of a region.
  write(4);
  ASSERT_EQ(b.ToState(IBV_QPS_RESET), 0);
  EXPECT_TRUE(Sees(b, 4));
  other.memory[99] = 5;
  ASSERT_EQ(other.Send(IBV_WR_RDMA_WRITE, {other.Piece(0, 100)}, peer.Address()), 0);
  ExpectDone(other.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_FALSE(Sees(peer, 5));
  ASSERT_EQ(V().ibv_dereg_mr(peer.mr), 0);
  peer.mr = nullptr;
  EXPECT_TRUE(Sees(peer, 5));
}

TEST_F(FakeIbverbsTest, GuardsRemoteMemory) {
  const auto fails = [&](ibv_wr_opcode opcode, int access, uint64_t shift, bool wrong_key,
                         ibv_wc_status status, ibv_event_type event) {
    EndOptions options = Options();
    auto [a, b] = Pair(options);
    ibv_mr* mr = V().ibv_reg_mr(b.pd, b.memory.data() + 8, 64, access);
    ASSERT_NE(mr, nullptr);
    EndAddress to = b.Address();
    to.addr += 8 + shift;
    to.rkey = wrong_key ? mr->lkey : mr->rkey;
    const std::vector<char> before = b.memory;
    ASSERT_EQ(a.Send(opcode, {a.Piece(0, 16)}, to), 0);
    EXPECT_EQ(a.Wait().status, status);
    EXPECT_EQ(a.State(), IBV_QPS_ERR);
    if (status != IBV_WC_SUCCESS) {
      EXPECT_EQ(NextAsync(), event);
      EXPECT_EQ(b.State(), IBV_QPS_ERR);
      EXPECT_EQ(b.memory, before);
    }
    EXPECT_EQ(V().ibv_dereg_mr(mr), 0);
  };
  const auto denied = IBV_WC_REM_ACCESS_ERR;
  const auto event = IBV_EVENT_QP_ACCESS_ERR;
  fails(IBV_WR_RDMA_WRITE, kAllAccess, 0, true, denied, event);
  fails(IBV_WR_RDMA_WRITE, kAllAccess, 49, false, denied, event);
  fails(IBV_WR_RDMA_WRITE, kAllAccess, uint64_t{0} - 1, false, denied, event);
  fails(IBV_WR_RDMA_WRITE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0, false, denied,
        event);
  fails(IBV_WR_RDMA_READ, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, 0, false, denied,
        event);
  fails(IBV_WR_RDMA_READ, kAllAccess, 49, false, denied, event);

  // A key of another protection domain.
  auto [a, b] = Pair();
  End& other = Make(Options());
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 8)}, other.Address()), 0);
  EXPECT_EQ(a.Wait().status, denied);
  EXPECT_EQ(NextAsync(), event);

  // What the queue pair itself does not allow.
  EndOptions options = Options();
  options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  auto [c, d] = Pair(options);
  ASSERT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 8)}, d.Address()), 0);
  EXPECT_EQ(c.Wait().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(NextAsync(), IBV_EVENT_QP_REQ_ERR);
}

TEST_F(FakeIbverbsTest, GuardsLocalMemory) {
  const auto fails = [&](ibv_wr_opcode opcode, auto piece_of, ibv_wc_status status) {
    auto [a, b] = Pair();
    ASSERT_EQ(a.Send(opcode, {piece_of(a)}, b.Address()), 0);
    const ibv_wc wc = a.Wait();
    EXPECT_EQ(wc.status, status);
    EXPECT_EQ(wc.opcode & IBV_WC_RECV, 0);
    EXPECT_EQ(a.State(), IBV_QPS_ERR);
    EXPECT_EQ(b.State(), IBV_QPS_RTS);
    ExpectNoAsync();
  };
  const auto bad_key = [](End& end) {
    ibv_sge piece = end.Piece(0, 8);
    piece.lkey = end.mr->rkey;
    return piece;
  };
  const auto too_far = [](End& end) { return end.Piece(4090, 8); };
  fails(IBV_WR_RDMA_WRITE, bad_key, IBV_WC_LOC_PROT_ERR);
  fails(IBV_WR_RDMA_READ, too_far, IBV_WC_LOC_PROT_ERR);
  ASSERT_EQ(V().fake_ibverbs_set("max_msg_sz", "100"), 0);
  fails(IBV_WR_RDMA_WRITE, [](End& end) { return end.Piece(0, 101); }, IBV_WC_LOC_LEN_ERR);

  EndOptions options = Options();
  options.access = IBV_ACCESS_REMOTE_READ;
  auto [a, b] = Pair(options);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_READ, {a.Piece(0, 8)}, b.Address()), 0);
  EXPECT_EQ(a.Wait().status, IBV_WC_LOC_PROT_ERR);

  // A receive that may not be written, and one that is too short.
  auto [c, d] = Pair(options);
  ASSERT_EQ(d.Receive({d.Piece(0, 8)}), 0);
  ASSERT_EQ(c.Send(IBV_WR_SEND, {c.Piece(0, 8)}, d.Address()), 0);
  EXPECT_EQ(d.Wait().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(c.Wait().status, IBV_WC_REM_OP_ERR);
  auto [e, f] = Pair();
  ASSERT_EQ(f.Receive({f.Piece(0, 8)}), 0);
  ASSERT_EQ(e.Send(IBV_WR_SEND, {e.Piece(0, 9)}, f.Address()), 0);
  EXPECT_EQ(f.Wait().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(e.Wait().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(NextAsync(), IBV_EVENT_QP_REQ_ERR);
}

TEST_F(FakeIbverbsTest, ARegionIsKnownByItsIova) {
  auto [a, b] = Pair();
  auto* page = static_cast<char*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  constexpr uint64_t kIova = 0x123456789a000;
  EXPECT_EQ(V().ibv_reg_mr_iova2(b.pd, page, 4096, kIova + 8, kAllAccess), nullptr);
  ibv_mr* mr = V().ibv_reg_mr_iova2(b.pd, page, 4096, kIova, kAllAccess);
  ASSERT_NE(mr, nullptr);
  EndAddress there = b.Address();
  there.addr = kIova;
  there.rkey = mr->rkey;
  a.Send(IBV_WR_RDMA_WRITE, {a.Piece(16, 8)}, there, 4088);
  EXPECT_EQ(a.Wait().status, IBV_WC_SUCCESS);
  EXPECT_EQ(page[4088], 16);
  there.addr = reinterpret_cast<uintptr_t>(page);
  a.Send(IBV_WR_RDMA_WRITE, {a.Piece(16, 8)}, there);
  EXPECT_EQ(a.Wait().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(V().ibv_dereg_mr(mr), 0);
  V().fake_ibverbs_set("iova", "same");
  EXPECT_EQ(V().ibv_reg_mr_iova2(b.pd, page, 4096, kIova, kAllAccess), nullptr);
  EXPECT_EQ(errno, EINVAL);
  munmap(page, 4096);
}

}  // namespace
}  // namespace fake_ibverbs::testing
