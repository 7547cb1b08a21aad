// The fake libibverbs: registered memory, and what it guards.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>

#include "fake_ibverbs/harness.h"

namespace fake_ibverbs::testing {
namespace {

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

}  // namespace
}  // namespace fake_ibverbs::testing
