// The fake libibverbs, loaded as its clients load it: devices, queue pairs, operations, queues.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>

#include "fake_ibverbs/harness.h"

namespace fake_ibverbs::testing {
namespace {

TEST_F(FakeIbverbsTest, ShowsWhatTheKeysSay) {
  const Verbs& v = V();
  const auto set = [&](const char* key, const char* value) {
    ASSERT_EQ(v.fake_ibverbs_set(key, value), 0) << key;
  };
  set("devices", "fake_0,fake_1");
  set("fake_1.ports", "2");
  set("fake_1.link_layer", "infiniband");
  set("fake_1:2.port_state", "down");
  set("fake_1:2.lid", "0x17");
  set("fake_1.max_qp_wr", "77");
  set("fake_1.max_msg_sz", "1000");
  set("fake_1.pkeys", "0xffff,0x8001");
  set("fake_0.gids", "rocev2:10.1.2.3,none,rocev2:fd00::7");

  int count = 0;
  ibv_device** list = v.ibv_get_device_list(&count);
  ASSERT_EQ(count, 2);
  EXPECT_STREQ(v.ibv_get_device_name(list[1]), "fake_1");
  EXPECT_NE(v.ibv_get_device_guid(list[0]), v.ibv_get_device_guid(list[1]));
  EXPECT_EQ(list[2], nullptr);
  ibv_context* second = v.ibv_open_device(list[1]);
  v.ibv_free_device_list(list);

  ibv_device_attr device;
  ASSERT_EQ(v.ibv_query_device(second, &device), 0);
  EXPECT_EQ(device.phys_port_cnt, 2);
  EXPECT_EQ(device.max_qp_wr, 77);

  // Old callers have less room.
  ibv_port_attr port;
  std::memset(&port, 0x55, sizeof(port));
  auto* compat = reinterpret_cast<_compat_ibv_port_attr*>(&port);
  ASSERT_EQ(v.ibv_query_port(second, 2, compat), 0);
  EXPECT_EQ(port.port_cap_flags2, 0x5555);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  EXPECT_EQ(port.lid, 0x17);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
  EXPECT_EQ(port.max_msg_sz, 1000U);
  EXPECT_EQ(port.pkey_tbl_len, 2);
  verbs_context* full = verbs_get_ctx(second);
  ASSERT_NE(full, nullptr);
  ASSERT_EQ(full->query_port(second, 1, &port, sizeof(port)), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.port_cap_flags2, 0);
  EXPECT_EQ(v.ibv_query_port(second, 3, compat), EINVAL);

  __be16 pkey = 0;
  EXPECT_EQ(v.ibv_query_pkey(second, 1, 1, &pkey), 0);
  EXPECT_EQ(be16toh(pkey), 0x8001);
  EXPECT_EQ(v.ibv_query_pkey(second, 1, 2, &pkey), -1);

  ibv_gid_entry entry = {};
  EXPECT_EQ(v._ibv_query_gid_ex(context_, 1, 0, &entry, 0, sizeof(entry)), 0);
  EXPECT_EQ(entry.gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_EQ(entry.gid.raw[10], 0xff);
  EXPECT_EQ(entry.gid.raw[15], 3);
  EXPECT_EQ(v._ibv_query_gid_ex(context_, 1, 1, &entry, 0, sizeof(entry)), ENODATA);
  EXPECT_EQ(v._ibv_query_gid_ex(context_, 1, 3, &entry, 0, sizeof(entry)), EINVAL);
  ibv_gid gid;
  EXPECT_EQ(v.ibv_query_gid(context_, 1, 2, &gid), 0);
  EXPECT_EQ(gid.raw[0], 0xfd);
  EXPECT_EQ(v.ibv_query_gid(context_, 1, 3, &gid), -1);
  EXPECT_EQ(NextAsync(), IBV_EVENT_GID_CHANGE);
  EXPECT_EQ(v.ibv_close_device(second), 0);

  set("fake_1.open_error", "EACCES");
  EXPECT_EQ(OpenDevice("fake_1"), nullptr);
  EXPECT_EQ(errno, EACCES);
  set("devices", "");
  list = v.ibv_get_device_list(&count);
  EXPECT_EQ(count, 0);
  v.ibv_free_device_list(list);
  EXPECT_EQ(v.fake_ibverbs_set("max_foo", "1"), EINVAL);
  EXPECT_EQ(v.fake_ibverbs_set("active_mtu", "1500"), EINVAL);
  EXPECT_EQ(v.fake_ibverbs_set("fake_9.lid", "1"), EINVAL);
  EXPECT_EQ(v.ibv_fork_init(), 0);
  EXPECT_EQ(v.ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
  EXPECT_STREQ(v.ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded");
  EXPECT_STREQ(v.ibv_event_type_str(IBV_EVENT_WQ_FATAL), "WQ fatal");
  EXPECT_STREQ(v.ibv_port_state_str(IBV_PORT_ACTIVE), "PORT_ACTIVE");
  EXPECT_STREQ(v.ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter");
}

TEST_F(FakeIbverbsTest, TheEnvironmentDescribesTheDevices) {
  setenv("FAKE_IBVERBS", "devices=one,two;two.max_qp_wr=5;fail=open_device:2:EMFILE", 1);
  V().fake_ibverbs_reset();
  ibv_context* two = OpenDevice("two");
  ASSERT_NE(two, nullptr);
  ibv_device_attr attr;
  EXPECT_EQ(V().ibv_query_device(two, &attr), 0);
  EXPECT_EQ(attr.max_qp_wr, 5);
  EXPECT_EQ(OpenDevice("one"), nullptr);
  EXPECT_EQ(errno, EMFILE);
  EXPECT_EQ(V().ibv_close_device(two), 0);
  unsetenv("FAKE_IBVERBS");
  V().fake_ibverbs_reset();

  const pid_t child = fork();
  if (child == 0) {
    char program[] = "/proc/self/exe";
    char peer[] = "FAKE_IBVERBS_PEER=0";
    char typo[] = "FAKE_IBVERBS=devises=one";
    char* const arguments[] = {program, nullptr};
    char* const environment[] = {peer, typo, nullptr};
    close(STDERR_FILENO);
    execve(program, arguments, environment);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
}

TEST_F(FakeIbverbsTest, QueuePairsGoThroughTheirStates) {
  End& a = Make(Options());
  End& b = Make(Options());
  const EndAddress peer = b.Address();
  EXPECT_EQ(a.State(), IBV_QPS_RESET);
  EXPECT_EQ(a.Receive(), EINVAL);
  EXPECT_EQ(a.ToRtr(peer), EINVAL);
  EXPECT_EQ(a.ToInit(), 0);
  EXPECT_EQ(a.Receive(), 0);
  EXPECT_EQ(a.ToRts(), EINVAL);
  EXPECT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 8)}, peer), EINVAL);

  // Each required attribute is missed, and each that makes no sense is refused.
  for (int bit = 1; bit < 30; ++bit) {
    if ((End::kToRtr & (1 << bit)) == 0) continue;
    ibv_qp_attr attr = a.RtrAttr(peer);
    EXPECT_EQ(V().ibv_modify_qp(a.qp, &attr, End::kToRtr & ~(1 << bit)), EINVAL) << bit;
  }
  const auto refused = [&](auto change) {
    ibv_qp_attr attr = a.RtrAttr(peer);
    change(&attr);
    EXPECT_EQ(V().ibv_modify_qp(a.qp, &attr, End::kToRtr), EINVAL);
  };
  refused([](ibv_qp_attr* attr) { attr->path_mtu = IBV_MTU_2048; });
  refused([](ibv_qp_attr* attr) { attr->dest_qp_num = 0; });
  refused([](ibv_qp_attr* attr) { attr->dest_qp_num = 1 << 24; });
  refused([](ibv_qp_attr* attr) { attr->max_dest_rd_atomic = 17; });
  refused([](ibv_qp_attr* attr) { attr->min_rnr_timer = 32; });
  refused([](ibv_qp_attr* attr) { attr->ah_attr.is_global = 0; });
  refused([](ibv_qp_attr* attr) { attr->ah_attr.port_num = 2; });
  refused([](ibv_qp_attr* attr) { attr->ah_attr.grh.sgid_index = 4; });
  refused([](ibv_qp_attr* attr) { attr->ah_attr.grh.sgid_index = 1; });
  refused([](ibv_qp_attr* attr) { attr->ah_attr.grh.dgid = {}; });

  EXPECT_EQ(a.ToRtr(peer), 0);
  EXPECT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 8)}, peer), EINVAL);
  EXPECT_EQ(a.ToRts(8), EINVAL);
  EXPECT_EQ(a.ToRts(), 0);
  EXPECT_EQ(a.State(), IBV_QPS_RTS);
  EXPECT_EQ(a.ToInit(), EINVAL);

  EXPECT_EQ(a.ToState(IBV_QPS_ERR), 0);
  EXPECT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 8)}, peer, 0, 0, 7), 0);
  ibv_wc first = a.Wait();
  ibv_wc second = a.Wait();
  EXPECT_EQ(first.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(second.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(first.wr_id + second.wr_id, 2U + 7U);
  EXPECT_EQ(a.ToInit(), EINVAL);
  EXPECT_EQ(a.ToState(IBV_QPS_RESET), 0);
  EXPECT_TRUE(a.Connect(peer));
}

TEST_F(FakeIbverbsTest, MovesBytesByEveryOpcode) {
  auto [a, b] = Pair();
  const EndAddress to = b.Address();
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(10, 3), a.Piece(0, 0), a.Piece(20, 2)}, to, 100), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(std::vector<char>(b.memory.begin() + 99, b.memory.begin() + 106),
            (std::vector<char>{0, 10, 11, 12, 20, 21, 0}));

  ASSERT_EQ(b.Receive({}, 11), 0);
  ASSERT_EQ(b.Receive({b.Piece(200, 2), b.Piece(300, 6)}, 12), 0);
  ASSERT_EQ(b.Receive({b.Piece(400, 8)}, 13), 0);
  ASSERT_EQ(b.Receive({}, 14), 0);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {a.Piece(30, 4)}, to, 0), 0);
  ibv_wc wc = b.Wait();
  ExpectDone(wc, 11, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(wc.byte_len, 4U);
  EXPECT_EQ(wc.qp_num, b.qp->qp_num);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(wc.imm_data, 0x01020304U);
  EXPECT_EQ(b.memory[3], 33);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);

  ASSERT_EQ(a.Send(IBV_WR_SEND, {a.Piece(40, 5)}, to), 0);
  wc = b.Wait();
  ExpectDone(wc, 12, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, 5U);
  EXPECT_EQ(wc.wc_flags, 0U);
  EXPECT_EQ(b.memory[201], 41);
  EXPECT_EQ(b.memory[302], 44);
  ExpectDone(a.Wait(), 1, IBV_WC_SEND);
  ASSERT_EQ(a.Send(IBV_WR_SEND_WITH_IMM, {a.Piece(50, 8)}, to), 0);
  wc = b.Wait();
  ExpectDone(wc, 13, IBV_WC_RECV);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  ExpectDone(a.Wait(), 1, IBV_WC_SEND);

  // An empty message with no key at all.
  EndAddress nowhere = to;
  nowhere.rkey = 0;
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {}, nowhere), 0);
  ExpectDone(b.Wait(), 14, IBV_WC_RECV_RDMA_WITH_IMM);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);

  ASSERT_EQ(b.Send(IBV_WR_RDMA_READ, {b.Piece(500, 3), b.Piece(600, 4)}, a.Address(), 70), 0);
  wc = b.Wait();
  ExpectDone(wc, 1, IBV_WC_RDMA_READ);
  EXPECT_EQ(wc.byte_len, 7U);
  EXPECT_EQ(b.memory[502], 72);
  EXPECT_EQ(b.memory[603], 76);
  const FakeIbverbsStats stats = Stats();
  EXPECT_EQ(stats.writes, 1U);
  EXPECT_EQ(stats.writes_with_imm, 2U);
  EXPECT_EQ(stats.sends, 2U);
  EXPECT_EQ(stats.reads, 1U);
  EXPECT_EQ(stats.send_posts, 6U);
  EXPECT_EQ(stats.bytes_written, 9U);
  EXPECT_EQ(stats.bytes_read, 7U);
  EXPECT_EQ(stats.bytes_sent, 13U);
  ExpectNoAsync();
}

TEST_F(FakeIbverbsTest, MovesMoreThanAPacketBothWays) {
  EndOptions options = Options();
  options.bytes = 3 << 20;
  auto [a, b] = Pair(options);
  const size_t half = options.bytes / 2;
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(1, half), a.Piece(half, half)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(std::memcmp(&b.memory[0], &a.memory[1], half), 0);
  EXPECT_EQ(std::memcmp(&b.memory[half], &a.memory[half], half), 0);
  std::fill(b.memory.begin(), b.memory.end(), 0);
  ASSERT_EQ(b.Send(IBV_WR_RDMA_READ, {b.Piece(5, half), b.Piece(half + 9, 100)}, a.Address()), 0);
  ExpectDone(b.Wait(), 1, IBV_WC_RDMA_READ);
  EXPECT_EQ(std::memcmp(&b.memory[5], &a.memory[0], half), 0);
  EXPECT_EQ(std::memcmp(&b.memory[half + 9], &a.memory[half], 100), 0);
}

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

TEST_F(FakeIbverbsTest, ExecutesInOrderAndSignalsWhatIsAsked) {
  ASSERT_EQ(V().fake_ibverbs_set("delay_us", "200"), 0);
  auto [a, b] = Pair();
  const EndAddress to = b.Address();
  for (uint64_t i = 0; i < 60; ++i) {
    ASSERT_EQ(b.Receive({}, i), 0);
    const auto opcode = i % 3 == 2 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    ASSERT_EQ(a.Send(opcode, {a.Piece(i, 1)}, to, 0, i % 4 == 3 ? IBV_SEND_SIGNALED : 0, i), 0);
  }
  for (uint64_t i = 3; i < 60; i += 4) ExpectDone(a.Wait(), i, IBV_WC_RDMA_WRITE);
  for (uint64_t i = 0; i < 20; ++i) ExpectDone(b.Wait(), i, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(b.memory[0], 59);
  EXPECT_TRUE(a.Quiet());

  EndOptions options = Options();
  options.signal_all = true;
  auto [c, d] = Pair(options);
  ASSERT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1)}, d.Address(), 0, IBV_SEND_FENCE), 0);
  ExpectDone(c.Wait(), 1, IBV_WC_RDMA_WRITE);
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

TEST_F(FakeIbverbsTest, FlushesInOrderAfterTheFirstError) {
  auto [a, b] = Pair();
  EndAddress wrong = b.Address();
  wrong.rkey ^= 1;
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(a.Receive({}, 100 + i), 0);
  for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(b.Receive({}, 200 + i), 0);
  V().fake_ibverbs_break_path(true);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 8)}, b.Address(), 0, 0, 0), 0);
  for (uint64_t i = 1; i < 5; ++i) {
    ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 8)}, wrong, 0, 0, i), 0);
  }
  V().fake_ibverbs_break_path(false);
  std::vector<uint64_t> sends;
  std::vector<uint64_t> receives;
  for (int i = 0; i < 9; ++i) {
    const ibv_wc wc = a.Wait();
    EXPECT_EQ(wc.status, wc.wr_id == 1 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR);
    (wc.wr_id < 100 ? sends : receives).push_back(wc.wr_id);
  }
  EXPECT_EQ(sends, (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(receives, (std::vector<uint64_t>{100, 101, 102, 103, 104}));
  for (uint64_t i = 0; i < 5; ++i) {
    const ibv_wc wc = b.Wait();
    EXPECT_EQ(wc.wr_id, 200 + i);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  }
  EXPECT_EQ(NextAsync(), IBV_EVENT_QP_ACCESS_ERR);
  ASSERT_EQ(b.Receive({}, 300), 0);
  EXPECT_EQ(b.Wait().status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(Stats().flushed_completions, 3U + 5 + 5 + 1);
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

  // A list is taken up to the request at fault.
  ibv_sge piece = c.Piece(0, 1);
  ibv_send_wr list[6] = {};
  for (int i = 0; i < 6; ++i) {
    list[i].next = i < 5 ? &list[i + 1] : nullptr;
    list[i].sg_list = &piece;
    list[i].num_sge = 1;
    list[i].wr.rdma.remote_addr = d.Address().addr;
    list[i].wr.rdma.rkey = d.Address().rkey;
  }
  const FakeIbverbsStats before = Stats();
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(c.qp, list, &bad), ENOMEM);
  EXPECT_EQ(bad, &list[4]);
  EXPECT_EQ(Stats().send_posts, before.send_posts + 4);
  EXPECT_EQ(Stats().send_doorbells, before.send_doorbells + 1);

  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = a.cq;
  init.qp_type = IBV_QPT_UD;
  EXPECT_EQ(V().ibv_create_qp(a.pd, &init), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  init.qp_type = IBV_QPT_RC;
  init.cap.max_inline_data = 1 << 20;
  EXPECT_EQ(V().ibv_create_qp(a.pd, &init), nullptr);
  EXPECT_EQ(errno, EINVAL);
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

TEST_F(FakeIbverbsTest, DestroyedQueuePairsTakeTheirCompletionsAlong) {
  auto [a, b] = Pair();
  EndOptions options = Options();
  options.cq = a.cq;
  auto extra = std::make_unique<End>(options);
  ASSERT_EQ(extra->ToInit(), 0);
  ASSERT_EQ(extra->Receive(), 0);
  ASSERT_EQ(extra->ToState(IBV_QPS_ERR), 0);
  EXPECT_TRUE(Eventually([] { return Stats().flushed_completions == 1; }));
  extra.reset();
  EXPECT_TRUE(a.Quiet());
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
}

TEST_F(FakeIbverbsTest, ObeysItsSocket) {
  auto [a, b] = Pair();
  EXPECT_EQ(Command(getpid(), "break_path 1\n"), "ok");
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  EXPECT_EQ(a.Wait().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(Command(getpid(), "break_path 0\nport_event 0\nport_event 1"), "ok\nok\nok");
  EXPECT_EQ(NextAsync(), IBV_EVENT_PORT_ERR);
  EXPECT_EQ(NextAsync(), IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(Command(getpid(), "fail alloc_pd 1 EPERM"), "ok");
  EXPECT_EQ(V().ibv_alloc_pd(context_), nullptr);
  EXPECT_EQ(Command(getpid(), "fake_0.lid=5"), "ok");
  EXPECT_EQ(NextAsync(), IBV_EVENT_LID_CHANGE);
  EXPECT_EQ(Command(getpid(), "dance").substr(0, 5), "error");
  EXPECT_NE(Command(getpid(), "stats").find("\"send_posts\": 1, "), std::string::npos);
  EXPECT_EQ(V().fake_ibverbs_command("dance"), EINVAL);
}

TEST_F(FakeIbverbsTest, InfinibandGoesByLid) {
  ASSERT_EQ(V().fake_ibverbs_set("link_layer", "infiniband"), 0);
  End& a = Make(Options());
  End& b = Make(Options());
  const auto connect = [&](End& end, const End& peer, uint16_t lid) {
    ibv_qp_attr attr = end.RtrAttr(peer.Address());
    attr.ah_attr.is_global = 0;
    attr.ah_attr.dlid = lid;
    EXPECT_EQ(end.ToInit(), 0);
    const int error = V().ibv_modify_qp(end.qp, &attr, End::kToRtr);
    return error != 0 ? error : end.ToRts();
  };
  EXPECT_EQ(connect(a, b, 0), EINVAL);
  EXPECT_EQ(connect(a, b, 1), 0);
  EXPECT_EQ(connect(b, a, 1), 0);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  End& c = Make(Options());
  EXPECT_EQ(connect(c, b, 2), 0);
  ASSERT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1)}, b.Address()), 0);
  EXPECT_EQ(c.Wait().status, IBV_WC_RETRY_EXC_ERR);
  while (Stats().async_events > 0) {
    pollfd wanted = {context_->async_fd, POLLIN, 0};
    if (poll(&wanted, 1, 0) == 0) break;
    NextAsync();
  }
}

// Two ports of InfiniBand, and an end on each.
class FakeInfiniband : public FakeIbverbsTest {
 protected:
  void SetUp() override {
    FakeIbverbsTest::SetUp();
    Set("devices", "fake_0,fake_1");
    Set("link_layer", "infiniband");
    second_ = OpenDevice("fake_1");
    ASSERT_NE(second_, nullptr);
  }
  void TearDown() override {
    ends_.clear();
    EXPECT_EQ(V().ibv_close_device(second_), 0);
    FakeIbverbsTest::TearDown();
  }
  static void Set(const char* key, const char* value) {
    ASSERT_EQ(V().fake_ibverbs_set(key, value), 0) << key;
  }
  void MakeEnds() {
    EndOptions options = Options();
    options.gid_index = 0;
    a_ = &Make(options);
    options.context = second_;
    b_ = &Make(options);
  }
  static int Connect(End* end, const End& peer, bool global, uint16_t lid) {
    ibv_qp_attr attr = end->RtrAttr(peer.Address());
    attr.ah_attr.is_global = global ? 1 : 0;
    attr.ah_attr.dlid = lid;
    EXPECT_EQ(end->ToInit(), 0);
    const int error = V().ibv_modify_qp(end->qp, &attr, End::kToRtr);
    return error != 0 ? error : end->ToRts();
  }
  ibv_wc_status Write() {
    EXPECT_EQ(a_->Send(IBV_WR_RDMA_WRITE, {a_->Piece(0, 1)}, b_->Address()), 0);
    return a_->Wait().status;
  }

  ibv_context* second_ = nullptr;
  End* a_ = nullptr;
  End* b_ = nullptr;
};

TEST_F(FakeInfiniband, PortsThatShareALidNeedAGlobalHeader) {
  Set("lid", "7");
  Set("fake_1.grh_required", "1");
  ibv_port_attr port = {};
  ASSERT_EQ(V().ibv_query_port(second_, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port)), 0);
  EXPECT_EQ(port.flags, IBV_QPF_GRH_REQUIRED);
  MakeEnds();
  EXPECT_EQ(Connect(b_, *a_, /*global=*/false, 7), EINVAL);
  EXPECT_EQ(Connect(b_, *a_, /*global=*/true, 7), 0);
  EXPECT_EQ(Connect(a_, *b_, /*global=*/false, 7), 0);
  EXPECT_EQ(Write(), IBV_WC_RETRY_EXC_ERR);
  MakeEnds();
  EXPECT_EQ(Connect(b_, *a_, /*global=*/true, 7), 0);
  EXPECT_EQ(Connect(a_, *b_, /*global=*/true, 7), 0);
  EXPECT_EQ(Write(), IBV_WC_SUCCESS);
}

TEST_F(FakeInfiniband, SubnetsAreLeftByTheLidOfTheRouterAndAGlobalHeader) {
  Set("fake_0.gids", "ib:fec0:0:11:1::1");
  Set("fake_1.gids", "ib:fec0:0:22:2::1");
  const auto writes = [&](bool global, uint16_t to_b, uint16_t to_a) {
    MakeEnds();
    EXPECT_EQ(Connect(b_, *a_, global, to_a), 0);
    EXPECT_EQ(Connect(a_, *b_, global, to_b), 0);
    return Write() == IBV_WC_SUCCESS;
  };
  EXPECT_FALSE(writes(/*global=*/false, 2, 1));
  EXPECT_FALSE(writes(/*global=*/true, 2, 1));
  EXPECT_TRUE(writes(/*global=*/true, 0x22, 0x11));
  Set("fake_1.gids", "ib:fec0:0:22:1::1");
  EXPECT_TRUE(writes(/*global=*/false, 2, 1));
}

TEST_F(FakeIbverbsTest, ManyThreadsAtOnce) {
  ASSERT_EQ(V().fake_ibverbs_set("delay_us", "20"), 0);
  constexpr int kThreads = 4;
  constexpr uint64_t kRounds = 200;
  std::vector<std::pair<End*, End*>> pairs;
  for (int i = 0; i < kThreads; ++i) {
    auto [a, b] = Pair();
    pairs.emplace_back(&a, &b);
  }
  std::vector<std::thread> threads;
  for (const auto& pair : pairs) {
    threads.emplace_back([a = pair.first, b = pair.second] {
      for (uint64_t i = 0; i < kRounds; ++i) {
        std::fill(a->memory.begin(), a->memory.end(), static_cast<char>(i));
        ASSERT_EQ(b->Receive({}, i), 0);
        ASSERT_EQ(a->Send(IBV_WR_RDMA_WRITE_WITH_IMM, {a->Piece(0, 4096)}, b->Address(), 0, 2, i),
                  0);
        ASSERT_EQ(b->Wait().wr_id, i);
        ASSERT_EQ(a->Wait().wr_id, i);
        ASSERT_EQ(b->memory, a->memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Stats().writes_with_imm, kThreads * kRounds);
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

TEST_F(FakeIbverbsTest, LateBytesComeByThemselvesInTheEnd) {
  ASSERT_EQ(V().fake_ibverbs_set("place_late_us", "20000"), 0);
  const std::pair<End&, End&> ends = Pair();
  End& a = ends.first;
  End& b = ends.second;
  a.memory[99] = 1;
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 100)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_TRUE(Eventually([&] {
    const FakeIbverbsStats fence = Stats();  // takes the lock that the bytes are placed under
    return fence.qps != 0 && Sees(b, 1);
  }));
}

}  // namespace
}  // namespace fake_ibverbs::testing
