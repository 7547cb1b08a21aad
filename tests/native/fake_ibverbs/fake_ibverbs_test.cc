// The library that stands in for libibverbs in the other tests, loaded as they load it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <numeric>

#include "fake_ibverbs/harness.h"

namespace fake_ibverbs::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

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

TEST_F(FakeIbverbsTest, RegistersWhatItMay) {
  const Verbs& v = V();
  End& a = Make(Options());
  char* start = a.memory.data();
  const auto error = [&](void* address, size_t length, int access) {
    errno = 0;
    ibv_mr* mr = v.ibv_reg_mr(a.pd, address, length, access);
    if (mr != nullptr) {
      EXPECT_EQ(v.ibv_dereg_mr(mr), 0);
    }
    return mr != nullptr ? 0 : errno;
  };
  EXPECT_EQ(error(start, 8, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  EXPECT_EQ(error(start, 0, kAllAccess), EINVAL);
  EXPECT_EQ(error(start, 8, 1 << 15), EINVAL);
  EXPECT_EQ(error(start, 8, kAllAccess | IBV_ACCESS_RELAXED_ORDERING), 0);
  void* gone = mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(error(gone, 8192, 0), 0);
  munmap(gone, 8192);
  EXPECT_EQ(error(gone, 8192, 0), EFAULT);
  ASSERT_EQ(v.fake_ibverbs_set("memlock", "5000"), 0);
  EXPECT_EQ(error(start, 904, 0), 0);
  EXPECT_EQ(error(start, 905, 0), ENOMEM);

  // Remote addresses of a region may start anywhere that is as far into a page.
  ASSERT_EQ(v.fake_ibverbs_set("memlock", "100000"), 0);
  auto [c, d] = Pair();
  const uint64_t iova = 0x1000 + reinterpret_cast<uintptr_t>(d.memory.data() + 16) % 4096;
  ibv_mr* mr = v.ibv_reg_mr_iova2(d.pd, d.memory.data() + 16, 64, iova,
                                  kAllAccess | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_NE(mr, nullptr);
  EXPECT_NE(mr->lkey, mr->rkey);
  EndAddress to = d.Address();
  to.addr = iova;
  to.rkey = mr->rkey;
  ASSERT_EQ(c.Send(IBV_WR_RDMA_WRITE, {c.Piece(1, 8)}, to, 2), 0);
  ExpectDone(c.Wait(), 1, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(d.memory[18], 1);
  EXPECT_EQ(v.ibv_dereg_mr(mr), 0);
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

// A window over the second end's memory, of which the queue pair itself allows all.
class FakeWindows : public FakeIbverbsTest {
 protected:
  void Open(int region_access) {
    EndOptions options = Options();
    options.access = region_access;
    a_ = &Make(Options());
    b_ = &Make(options);
    ASSERT_TRUE(a_->Connect(b_->Address()));
    ASSERT_EQ(b_->ToInit(), 0);
    ibv_qp_attr open = {};
    open.qp_access_flags = kAllAccess;
    ASSERT_EQ(V().ibv_modify_qp(b_->qp, &open, IBV_QP_ACCESS_FLAGS), 0);
    ASSERT_EQ(b_->ToRtr(a_->Address()), 0);
    ASSERT_EQ(b_->ToRts(), 0);
    window_ = ibv_alloc_mw(b_->pd, IBV_MW_TYPE_2);
    ASSERT_NE(window_, nullptr);
    key_ = ibv_inc_rkey(window_->rkey);
    there_ = b_->Address();
    there_.rkey = key_;
  }
  void TearDown() override {
    if (window_ != nullptr) {
      EXPECT_EQ(ibv_dealloc_mw(window_), 0);
    }
    FakeIbverbsTest::TearDown();
    EXPECT_EQ(Stats().mws, 0U);
  }
  ibv_wc_status Bind(unsigned int access, uint64_t offset = 0, uint64_t length = 64) {
    const ibv_mw_bind_info info = {b_->mr, there_.addr + offset, length, access};
    EXPECT_EQ(b_->Bind(window_, key_, info), 0);
    return b_->Wait().status;
  }
  ibv_wc_status Use(ibv_wr_opcode opcode, size_t offset) {
    a_->Send(opcode, {a_->Piece(0, 8)}, there_, offset);
    return a_->Wait().status;
  }

  static constexpr int kWindowsOnly = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
  End* a_ = nullptr;
  End* b_ = nullptr;
  ibv_mw* window_ = nullptr;
  uint32_t key_ = 0;
  EndAddress there_ = {};
};

TEST_F(FakeWindows, AllowWhatTheyWereBoundForAndNoMore) {
  ASSERT_NO_FATAL_FAILURE(Open(kWindowsOnly));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_WRITE, 64), IBV_WC_SUCCESS);
  EXPECT_EQ(V().ibv_dereg_mr(b_->mr), EBUSY);
  EXPECT_EQ(V().ibv_destroy_qp(b_->qp), EBUSY);
  EXPECT_EQ(Use(IBV_WR_RDMA_WRITE, 120), IBV_WC_SUCCESS);
  EXPECT_EQ(Use(IBV_WR_RDMA_WRITE, 121), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(FakeWindows, AreReadOnlyIfToBeRead) {
  ASSERT_NO_FATAL_FAILURE(Open(kWindowsOnly));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
  EXPECT_EQ(Use(IBV_WR_RDMA_READ, 0), IBV_WC_SUCCESS);
  EXPECT_EQ(Use(IBV_WR_RDMA_WRITE, 0), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(FakeWindows, ServeNothingBeforeTheyAreBoundOrAfterTheirEnd) {
  ASSERT_NO_FATAL_FAILURE(Open(kWindowsOnly));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
  EXPECT_EQ(Use(IBV_WR_RDMA_READ, 0), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dealloc_mw(window_), 0);
  window_ = nullptr;
  EXPECT_EQ(Use(IBV_WR_RDMA_READ, 0), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(FakeWindows, ServeNoOtherQueuePair) {
  ASSERT_NO_FATAL_FAILURE(Open(kWindowsOnly));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
  // Of the same domain, connected to a third end.
  End& c = Make(Options());
  ibv_qp_init_attr init = {};
  init.send_cq = init.recv_cq = b_->cq;
  init.cap = {4, 4, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* const first = b_->qp;
  b_->qp = V().ibv_create_qp(b_->pd, &init);
  ASSERT_NE(b_->qp, nullptr);
  ibv_qp_attr open = {};
  open.qp_access_flags = kAllAccess;
  ASSERT_EQ(b_->ToInit(), 0);
  ASSERT_EQ(V().ibv_modify_qp(b_->qp, &open, IBV_QP_ACCESS_FLAGS), 0);
  ASSERT_EQ(b_->ToRtr(c.Address()), 0);
  ASSERT_TRUE(c.Connect(b_->Address()));
  c.Send(IBV_WR_RDMA_READ, {c.Piece(0, 8)}, there_);
  EXPECT_EQ(c.Wait().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(V().ibv_destroy_qp(b_->qp), 0);
  b_->qp = first;
  EXPECT_EQ(Use(IBV_WR_RDMA_READ, 0), IBV_WC_SUCCESS);
}

TEST_F(FakeWindows, AreNotBoundOverARegionThatDoesNotAllowIt) {
  ASSERT_NO_FATAL_FAILURE(Open(kAllAccess));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_READ), IBV_WC_MW_BIND_ERR);
}

TEST_F(FakeWindows, AreNotBoundOutsideOfTheirRegion) {
  ASSERT_NO_FATAL_FAILURE(Open(kWindowsOnly));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_READ, 4090), IBV_WC_MW_BIND_ERR);
}

TEST_F(FakeWindows, AreNotWritableOverMemoryThatIsNot) {
  ASSERT_NO_FATAL_FAILURE(Open(IBV_ACCESS_MW_BIND));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_WRITE), IBV_WC_MW_BIND_ERR);
}

TEST_F(FakeWindows, AreNotBoundTwice) {
  ASSERT_NO_FATAL_FAILURE(Open(kWindowsOnly));
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_READ), IBV_WC_SUCCESS);
  key_ = ibv_inc_rkey(key_);
  EXPECT_EQ(Bind(IBV_ACCESS_REMOTE_READ), IBV_WC_MW_BIND_ERR);
}

TEST_F(FakeIbverbsTest, WindowsAreOnlyWhereTheDeviceHasThem) {
  ibv_device_attr attributes;
  ASSERT_EQ(V().ibv_query_device(context_, &attributes), 0);
  EXPECT_NE(attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0U);
  V().fake_ibverbs_set("windows", "none");
  ASSERT_EQ(V().ibv_query_device(context_, &attributes), 0);
  EXPECT_EQ(attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B, 0U);
  End& end = Make(Options());
  EXPECT_EQ(ibv_alloc_mw(end.pd, IBV_MW_TYPE_2), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
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
  auto [a, b] = Pair(options);
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

  // Mended in time, the message is there once.
  auto [c, d] = Pair();
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "800"), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(d.Receive(), 0);
  V().fake_ibverbs_break_path(true);
  ASSERT_EQ(c.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {c.Piece(3, 1)}, d.Address()), 0);
  EXPECT_TRUE(c.Quiet());
  V().fake_ibverbs_break_path(false);
  ExpectDone(c.Wait(), 1, IBV_WC_RDMA_WRITE);
  ExpectDone(d.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_TRUE(d.Quiet());
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

// Sends a datagram to a process's control socket, and returns the answer.
std::string Command(pid_t pid, const std::string& text) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  // An address chosen by the kernel, to be answered at.
  bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address.sun_family));
  const std::string name = "fake_ibverbs." + std::to_string(pid);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  char answer[4096];
  ssize_t got = -1;
  if (sendto(fd, text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&address), length) > 0) {
    got = recv(fd, answer, sizeof(answer), 0);
  }
  close(fd);
  return got < 0 ? "" : std::string(answer, static_cast<size_t>(got));
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

// What the test asks of another process.
struct Order {
  enum Kind { kConnect, kReceive, kWait, kFill, kCountOf, kWrite, kRead, kState, kExit };
  Kind kind;
  EndAddress address;
  size_t offset;
  size_t length;
  int value;
};
struct Outcome {
  EndAddress address;
  ibv_wc wc;
  uint64_t number;
};

#if defined(__SANITIZE_THREAD__)
constexpr size_t kPeerBytes = 8 << 20;
#else
constexpr size_t kPeerBytes = 64 << 20;
#endif

// The other process: one end, which does as told until its socket closes.
int RunPeer(int fd) {
  EndOptions options;
  options.context = OpenDevice();
  options.bytes = kPeerBytes;
  {
    End end(options);
    Outcome outcome = {end.Address(), {}, 0};
    Order order;
    while (write(fd, &outcome, sizeof(outcome)) == sizeof(outcome) &&
           read(fd, &order, sizeof(order)) == sizeof(order)) {
      outcome = {end.Address(), {}, 0};
      switch (order.kind) {
        case Order::kConnect:
          outcome.number = end.Connect(order.address) ? 1 : 0;
          break;
        case Order::kReceive:
          end.Receive({end.Piece(order.offset, order.length)});
          break;
        case Order::kWait:
          outcome.wc = end.Wait();
          break;
        case Order::kFill:
          std::fill(end.memory.begin(), end.memory.end(), static_cast<char>(order.value));
          break;
        case Order::kCountOf:
          outcome.number = static_cast<uint64_t>(
              std::count(end.memory.begin(), end.memory.end(), static_cast<char>(order.value)));
          break;
        case Order::kWrite:
        case Order::kRead:
          end.Send(order.kind == Order::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE_WITH_IMM,
                   {end.Piece(order.offset, order.length)}, order.address);
          break;
        case Order::kState:
          outcome.number = end.State();
          break;
        case Order::kExit:
          _exit(0);
      }
    }
  }
  const int failed = ::testing::Test::HasFailure() ? 1 : 0;
  return V().ibv_close_device(options.context) == 0 ? failed : 1;
}

class Peer {
 public:
  Peer() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    fd_ = ends[0];
    const std::string number = std::to_string(ends[1]);
    std::string program = "/proc/self/exe";
    std::vector<std::string> environment = {"FAKE_IBVERBS_PEER=" + number,
                                            "FAKE_IBVERBS=retry_ms=40"};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    char* const arguments[] = {program.data(), nullptr};
    pid = fork();
    if (pid == 0) {
      fcntl(ends[1], F_SETFD, 0);
      execve(program.c_str(), arguments, pointers.data());
      _exit(127);
    }
    close(ends[1]);
    address = Next().address;
  }
  ~Peer() {
    close(fd_);
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, killed ? SIGKILL : 0);
  }
  Outcome Next() {
    Outcome outcome = {};
    EXPECT_EQ(recv(fd_, &outcome, sizeof(outcome), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(outcome)));
    return outcome;
  }
  void Tell(Order order) {
    EXPECT_EQ(write(fd_, &order, sizeof(order)), static_cast<ssize_t>(sizeof(order)));
  }
  Outcome Ask(Order order) {
    Tell(order);
    return Next();
  }

  pid_t pid = -1;
  EndAddress address = {};
  bool killed = false;

 private:
  int fd_ = -1;
};

class TwoProcesses : public FakeIbverbsTest {
 protected:
  void Connect(const EndOptions& options) {
    end_ = &Make(options);
    ASSERT_TRUE(end_->Connect(peer_.address));
    ASSERT_EQ(peer_.Ask({Order::kConnect, end_->Address(), 0, 0, 0}).number, 1U);
  }
  EndOptions Big() {
    EndOptions options = Options();
    options.bytes = kPeerBytes;
    return options;
  }
  Peer peer_;
  End* end_ = nullptr;
};

TEST_F(TwoProcesses, MoveBytesByEveryOpcode) {
  Connect(Big());
  std::fill(end_->memory.begin(), end_->memory.end(), 7);
  peer_.Ask({Order::kReceive, {}, 0, 100, 0});
  peer_.Ask({Order::kReceive, {}, 1000, 100, 0});
  const auto start = steady_clock::now();
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE_WITH_IMM, {end_->Piece(0, kPeerBytes)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);
  RecordProperty("write_ms", static_cast<int>((steady_clock::now() - start) / milliseconds(1)));
  Outcome outcome = peer_.Ask({Order::kWait, {}, 0, 0, 0});
  ExpectDone(outcome.wc, 2, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(outcome.wc.byte_len, kPeerBytes);
  EXPECT_EQ(outcome.wc.imm_data, 0x01020304U);
  EXPECT_EQ(peer_.Ask({Order::kCountOf, {}, 0, 0, 7}).number, kPeerBytes);

  std::fill(end_->memory.begin(), end_->memory.end(), 8);
  ASSERT_EQ(end_->Send(IBV_WR_SEND, {end_->Piece(0, 30), end_->Piece(50, 30)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_SEND);
  ExpectDone(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc, 2, IBV_WC_RECV);
  EXPECT_EQ(peer_.Ask({Order::kCountOf, {}, 0, 0, 8}).number, 60U);

  peer_.Ask({Order::kFill, {}, 0, 0, 9});
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_READ, {end_->Piece(0, kPeerBytes)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_READ);
  EXPECT_EQ(std::count(end_->memory.begin(), end_->memory.end(), 9),
            static_cast<ptrdiff_t>(kPeerBytes));

  // And the other way, both at once.
  ASSERT_EQ(end_->Receive(), 0);
  peer_.Ask({Order::kFill, {}, 0, 0, 10});
  peer_.Tell({Order::kWrite, end_->Address(), 0, kPeerBytes / 2, 0});
  ASSERT_EQ(
      end_->Send(IBV_WR_RDMA_READ, {end_->Piece(kPeerBytes / 2, kPeerBytes / 2)}, peer_.address),
      0);
  peer_.Next();
  std::vector<ibv_wc> both = {end_->Wait(), end_->Wait()};
  if (both[0].wr_id == 2) std::swap(both[0], both[1]);
  ExpectDone(both[0], 1, IBV_WC_RDMA_READ);
  ExpectDone(both[1], 2, IBV_WC_RECV_RDMA_WITH_IMM);
  ExpectDone(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc, 1, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(std::count(end_->memory.begin(), end_->memory.end(), 10),
            static_cast<ptrdiff_t>(kPeerBytes));
}

TEST_F(TwoProcesses, WaitForReceivers) {
  Connect(Options());
  ASSERT_EQ(end_->Send(IBV_WR_SEND, {end_->Piece(0, 100)}, peer_.address), 0);
  EXPECT_TRUE(Eventually([] { return Stats().rnr_naks_received > 3; }));
  peer_.Ask({Order::kReceive, {}, 0, 100, 0});
  ExpectDone(end_->Wait(), 1, IBV_WC_SEND);
  ExpectDone(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc, 2, IBV_WC_RECV);
}

TEST_F(TwoProcesses, GuardTheirMemory) {
  Connect(Options());
  EndAddress wrong = peer_.address;
  wrong.addr += kPeerBytes - 5;
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 6)}, wrong), 0);
  EXPECT_EQ(end_->Wait().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(peer_.Ask({Order::kState, {}, 0, 0, 0}).number, static_cast<uint64_t>(IBV_QPS_ERR));
  ExpectNoAsync();
}

TEST_F(TwoProcesses, NoticeDeath) {
  Connect(Big());
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "100"), 0);
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 1)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);
  // In the middle of a large one, most likely.
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(end_->Send(IBV_WR_RDMA_READ, {end_->Piece(0, kPeerBytes)}, peer_.address), 0);
  }
  kill(peer_.pid, SIGKILL);
  peer_.killed = true;
  ibv_wc wc = end_->Wait();
  while (wc.status == IBV_WC_SUCCESS) wc = end_->Wait();
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(TwoProcesses, NoticeAStoppedPeerOnlyByItsSilence) {
  Connect(Options());
  kill(peer_.pid, SIGSTOP);
  waitpid(peer_.pid, nullptr, WUNTRACED);
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 1)}, peer_.address), 0);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_TRUE(end_->Quiet());
  kill(peer_.pid, SIGCONT);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);
}

TEST_F(TwoProcesses, EitherMayLoseItsPath) {
  Connect(Options());
  EXPECT_EQ(Command(peer_.pid, "break_path=1"), "ok");
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "1000"), 0);
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 1)}, peer_.address), 0);
  EXPECT_TRUE(end_->Quiet());
  EXPECT_EQ(Command(peer_.pid, "break_path=0"), "ok");
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);

  V().fake_ibverbs_break_path(true);
  peer_.Ask({Order::kRead, end_->Address(), 0, 10, 0});
  EXPECT_EQ(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc.status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(FakeIbverbsTest, AForkedChildLeavesTheParentAlone) {
  auto [a, b] = Pair();
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  ASSERT_EQ(b.Receive(), 0);
  const pid_t child = fork();
  if (child == 0) {
    // A thread may not be started here under ThreadSanitizer: the wait is for _exit().
    sleep(30);
    _exit(0);
  }
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  ExpectDone(b.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(FakeIbverbsTest, AForkedChildHasItsOwn) {
  auto [a, b] = Pair();
  const pid_t child = fork();
  if (child == 0) {
    bool good = a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()) == EIO;
    good = good && V().ibv_dereg_mr(a.mr) == EIO && Stats().contexts == 0;
    ibv_context* context = OpenDevice();
    EndOptions options;
    options.context = context;
    {
      End c(options);
      End d(options);
      good = good && c.Connect(d.Address()) && d.Connect(c.Address());
      good = good && c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1)}, d.Address()) == 0;
      good = good && c.Wait().status == IBV_WC_SUCCESS;
    }
    _exit(good && V().ibv_close_device(context) == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
}
#endif

}  // namespace
}  // namespace fake_ibverbs::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* peer = std::getenv("FAKE_IBVERBS_PEER");
  if (peer != nullptr) return fake_ibverbs::testing::RunPeer(std::atoi(peer));
  return RUN_ALL_TESTS();
}
