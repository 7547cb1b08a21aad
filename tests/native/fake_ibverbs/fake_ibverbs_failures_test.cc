// The fake libibverbs: paths, ports, verbs and devices that fail when told.

#include <gtest/gtest.h>

#include <cerrno>

#include "fake_ibverbs/harness.h"

namespace fake_ibverbs::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST_F(FakeIbverbsTest, ALostPathIsRetriedForAWhile) {
  auto [a, b] = Pair();
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "60000"), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(b.Receive(), 0);
  V().fake_ibverbs_break_path(true);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {a.Piece(3, 1)}, b.Address()), 0);
  EXPECT_TRUE(a.Quiet());
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "40"), 0);
  EXPECT_EQ(a.Wait().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(b.State(), IBV_QPS_RTS);
  V().fake_ibverbs_break_path(false);
  EXPECT_TRUE(b.Quiet());

  // Fixed in time, the message is there once.
  auto [c, d] = Pair();
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "60000"), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(d.Receive(), 0);
  V().fake_ibverbs_break_path(true);
  ASSERT_EQ(c.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {c.Piece(3, 1)}, d.Address()), 0);
  EXPECT_TRUE(c.Quiet());
  V().fake_ibverbs_break_path(false);
  ExpectDone(c.Wait(), 1, IBV_WC_RDMA_WRITE);
  ExpectDone(d.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_TRUE(d.Quiet());
}

TEST_F(FakeIbverbsTest, AQueuePairSaysHowLongItRetries) {
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "0"), 0);
  auto [a, b] = Pair();  // 67 ms, and 7 times again
  ASSERT_EQ(V().fake_ibverbs_set("flap_ms", "100"), 0);
  const auto start = steady_clock::now();
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_GE(steady_clock::now() - start, milliseconds(90));
  ASSERT_EQ(V().fake_ibverbs_set("flap_ms", "60000"), 0);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  EXPECT_EQ(a.Wait().status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(FakeIbverbsTest, AQueueThatBreaksTakesItsQueuePairsAlong) {
  auto [a, b] = Pair();
  ASSERT_EQ(V().fake_ibverbs_set("raise", "cq_err"), 0);
  EXPECT_EQ(NextAsync(), IBV_EVENT_CQ_ERR);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(a.cq, 1, &wc), -1);
  EXPECT_EQ(b.State(), IBV_QPS_ERR);
  for (int i = 0; i < 3; ++i) NextAsync();
  ExpectNoAsync();
}

TEST_F(FakeIbverbsTest, EventsAndChangesComeAlsoWithoutEachOther) {
  ASSERT_EQ(V().fake_ibverbs_set("quiet", "1"), 0);
  ASSERT_EQ(V().fake_ibverbs_set("gids", "rocev2:10.9.9.9"), 0);
  ExpectNoAsync();
  ASSERT_EQ(V().fake_ibverbs_set("raise", "client_reregister"), 0);
  EXPECT_EQ(NextAsync(), IBV_EVENT_CLIENT_REREGISTER);
  EXPECT_EQ(V().fake_ibverbs_set("raise", "tea"), EINVAL);
}

TEST_F(FakeIbverbsTest, PeersThatAreNotThereAreGivenUp) {
  const auto unreachable = [&](End& end, const EndAddress& to) {
    const auto start = steady_clock::now();
    ASSERT_EQ(end.Send(IBV_WR_RDMA_WRITE, {end.Piece(0, 1)}, to), 0);
    EXPECT_EQ(end.Wait().status, IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(steady_clock::now() - start, milliseconds(40));
    EXPECT_EQ(end.State(), IBV_QPS_ERR);
  };
  {
    auto [a, b] = Pair();
    const EndAddress to = b.Address();
    ASSERT_EQ(V().ibv_destroy_qp(b.qp), 0);
    b.qp = nullptr;
    unreachable(a, to);
  }
  {
    auto [a, b] = Pair();
    ASSERT_EQ(b.ToState(IBV_QPS_ERR), 0);
    unreachable(a, b.Address());
  }
  {
    // Connected to somebody else, from another address, or with another first number.
    End& a = Make(Options());
    End& b = Make(Options());
    End& c = Make(Options());
    ASSERT_TRUE(b.Connect(a.Address()));
    ASSERT_TRUE(c.Connect(b.Address()));
    unreachable(c, b.Address());
    EndAddress elsewhere = b.Address();
    elsewhere.gid.raw[15] = 77;
    ASSERT_TRUE(a.Connect(elsewhere));
    unreachable(a, b.Address());
    EXPECT_EQ(a.ToState(IBV_QPS_RESET), 0);
    ASSERT_TRUE(a.ToInit() == 0 && a.ToRtr(b.Address()) == 0 && a.ToRts(7, 99) == 0);
    unreachable(a, b.Address());
  }
  {
    // No process has this number.
    End& a = Make(Options());
    EndAddress nobody = a.Address();
    nobody.qp_num ^= 0x123000;
    ASSERT_TRUE(a.Connect(nobody));
    unreachable(a, nobody);
  }
}

TEST_F(FakeIbverbsTest, PortsGoDownAndUp) {
  auto [a, b] = Pair();
  V().fake_ibverbs_port_event(false);
  EXPECT_EQ(NextAsync(), IBV_EVENT_PORT_ERR);
  ibv_port_attr port;
  ASSERT_EQ(V().ibv_query_port(context_, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port)), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  EXPECT_EQ(a.Wait().status, IBV_WC_RETRY_EXC_ERR);
  V().fake_ibverbs_port_event(false);
  ExpectNoAsync();
  V().fake_ibverbs_port_event(true);
  EXPECT_EQ(NextAsync(), IBV_EVENT_PORT_ACTIVE);
}

TEST_F(FakeIbverbsTest, VerbsFailWhenTold) {
  const Verbs& v = V();
  End& a = Make(Options());
  ASSERT_EQ(v.fake_ibverbs_fail("ibv_reg_mr", 2, ENOMEM), 0);
  ibv_mr* mr = v.ibv_reg_mr(a.pd, a.memory.data(), 8, 0);
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(v.ibv_reg_mr_iova2(a.pd, a.memory.data(), 8, 0, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(v.ibv_dereg_mr(mr), 0);
  for (const char* verb : {"get_device_list", "open_device", "alloc_pd", "create_comp_channel",
                           "create_cq", "modify_qp", "poll_cq", "req_notify_cq", "post_recv"}) {
    ASSERT_EQ(v.fake_ibverbs_fail(verb, 1, EPERM), 0);
  }
  EXPECT_EQ(v.ibv_get_device_list(nullptr), nullptr);
  EXPECT_EQ(OpenDevice(), nullptr);
  EXPECT_EQ(v.ibv_alloc_pd(context_), nullptr);
  EXPECT_EQ(v.ibv_create_comp_channel(context_), nullptr);
  EXPECT_EQ(v.ibv_create_cq(context_, 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(a.ToInit(), EPERM);
  EXPECT_EQ(a.ToInit(), 0);
  EXPECT_EQ(a.Receive(), EPERM);
  ibv_wc wc;
  EXPECT_LT(ibv_poll_cq(a.cq, 1, &wc), 0);
  EXPECT_EQ(ibv_poll_cq(a.cq, 1, &wc), 0);
  EXPECT_EQ(ibv_req_notify_cq(a.cq, 0), EPERM);
  EXPECT_EQ(v.fake_ibverbs_fail("reg_mr", 0, ENOMEM), EINVAL);
}

TEST_F(FakeIbverbsTest, WorkRequestsFailWhenTold) {
  {
    auto [a, b] = Pair();
    V().fake_ibverbs_complete_with(IBV_WC_LOC_QP_OP_ERR, 0x77, 2);
    for (uint64_t i = 0; i < 3; ++i) {
      ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(5, 1)}, b.Address(), i, IBV_SEND_SIGNALED, i),
                0);
    }
    ExpectDone(a.Wait(), 0, IBV_WC_RDMA_WRITE);
    const ibv_wc wc = a.Wait();
    EXPECT_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
    EXPECT_EQ(wc.vendor_err, 0x77U);
    EXPECT_EQ(wc.wr_id, 1U);
    EXPECT_EQ(a.Wait().status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(b.State(), IBV_QPS_RTS);
    EXPECT_EQ(b.memory[1], 0);
  }
  {
    auto [a, b] = Pair();
    ASSERT_EQ(b.Receive(), 0);
    ASSERT_EQ(V().fake_ibverbs_command("complete_with REM_ACCESS_ERR 5 1"), 0);
    ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(5, 1)}, b.Address()), 0);
    const ibv_wc wc = a.Wait();
    EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(wc.vendor_err, 5U);
    EXPECT_EQ(b.Wait().status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(NextAsync(), IBV_EVENT_QP_ACCESS_ERR);
  }
}

TEST_F(FakeIbverbsTest, ADeadDeviceOnlyEnds) {
  auto [a, b] = Pair();
  ASSERT_EQ(b.Receive(), 0);
  V().fake_ibverbs_device_fatal();
  EXPECT_EQ(NextAsync(), IBV_EVENT_DEVICE_FATAL);
  EXPECT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(5, 1)}, b.Address()), EIO);
  EXPECT_EQ(a.ToState(IBV_QPS_ERR), EIO);
  EXPECT_EQ(V().ibv_alloc_pd(context_), nullptr);
  EXPECT_TRUE(a.Quiet());
  ibv_context* fresh = OpenDevice();
  ASSERT_NE(fresh, nullptr);
  ibv_device_attr attr;
  EXPECT_EQ(V().ibv_query_device(fresh, &attr), 0);
  EXPECT_EQ(V().ibv_close_device(fresh), 0);
}

}  // namespace
}  // namespace fake_ibverbs::testing
