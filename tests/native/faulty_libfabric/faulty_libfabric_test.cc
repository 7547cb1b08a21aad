// Where the double of libfabric differs from TCP, which the tests over it rely on: what may come in
// any order does, what may complete early does, and what a card demands is demanded.

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "faulty_libfabric/harness.h"

namespace faulty_libfabric::testing {
namespace {

TEST_F(FaultyLibfabricTest, UnorderedWritesOvertake) {
  Set("order", "none");
  const Info wants = Hints();
  wants->tx_attr->msg_order = FI_ORDER_SAS;
  EXPECT_EQ(Error(wants), -FI_ENODATA);
  const Info info = Find();
  EXPECT_EQ(info->tx_attr->msg_order | info->tx_attr->comp_order | info->rx_attr->msg_order, 0U);
  auto pair = Connected();
  const std::vector<uint64_t> data = Arrivals(*pair, 200);
  EXPECT_FALSE(std::is_sorted(data.begin(), data.end()));
  const FaultyLibfabricCounters counters = Counters();
  EXPECT_GT(counters.delayed_writes, 0U);
  EXPECT_GT(counters.overtaken_writes, 0U);
  // Delivery was asked for.
  EXPECT_EQ(counters.early_completions, 0U);
}

TEST_F(FaultyLibfabricTest, UnorderedMessagesOvertake) {
  Set("order", "none");
  auto pair = Connected();
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(pair->Try([&] { return pair->Receive(); }), 0);
    ASSERT_EQ(pair->Try([&] { return pair->Send(i); }), 0);
  }
  ASSERT_TRUE(Eventually([&] {
    pair->Progress();
    return pair->b.Done(FI_RECV) == 100 && pair->a.Done(FI_SEND) == 100;
  }));
  std::vector<uint64_t> data = pair->b.DataOf(FI_RECV);
  EXPECT_FALSE(std::is_sorted(data.begin(), data.end()));
  std::sort(data.begin(), data.end());
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(data[i], i);
  EXPECT_GT(Counters().overtaken_sends, 0U);
  EXPECT_GT(Counters().early_completions, 0U);
}

TEST_F(FaultyLibfabricTest, HeldWritesCompleteEarlyUnlessDeliveryIsAskedFor) {
  auto pair = Connected();
  Pair& p = *pair;
  L().faulty_libfabric_hold_writes(1);
  p.a.memory[0] = 'x';
  p.a.memory[1] = 'y';
  ASSERT_EQ(p.Write(0, 1, 0), 0);
  int delivered = 0;
  ASSERT_EQ(p.Write(1, 1, 1, 0, FI_DELIVERY_COMPLETE, &delivered), 0);
  ASSERT_EQ(p.Receive(), 0);
  ASSERT_EQ(p.Send(1), 0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.b.Done(FI_RECV) == 1; }));
  for (int i = 0; i < 100; ++i) p.Progress();
  EXPECT_EQ(p.a.Done(FI_WRITE), 1U);
  EXPECT_EQ(p.b.memory[0], 0);
  EXPECT_EQ(p.b.memory[1], 0);
  // The client may use its buffer again.
  p.a.memory[0] = 'z';
  L().faulty_libfabric_hold_writes(0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_WRITE) == 2; }));
  EXPECT_EQ(p.a.done.back().op_context, &delivered);
  EXPECT_EQ(p.b.memory[0], 'x');
  EXPECT_EQ(p.b.memory[1], 'y');
  EXPECT_EQ(Counters().early_completions, 1U);
  EXPECT_EQ(Counters().overtaken_writes, 2U);
}

TEST_F(FaultyLibfabricTest, LateCompletionsAreUnorderedIfTheProviderIs) {
  Set("order", "none");
  Set("late", "5000");
  auto pair = Connected();
  EXPECT_EQ(Arrivals(*pair, 100).size(), 100U);
  EXPECT_GT(Counters().reordered_completions, 0U);
}

TEST_F(FaultyLibfabricTest, ProviderChoosesKeysAndTakesVirtualAddresses) {
  Set("mr", "prov_key+virt_addr");
  const Info refuses = Hints();
  refuses->domain_attr->mr_mode = FI_MR_PROV_KEY;
  EXPECT_EQ(Error(refuses), -FI_ENODATA);
  refuses->domain_attr->mr_mode = 0;
  EXPECT_EQ(Error(refuses), -FI_ENODATA);
  EXPECT_EQ(Find()->domain_attr->mr_mode, FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
  auto pair = Connected();
  EXPECT_NE(fi_mr_key(pair->b.mr), 1U);
  EXPECT_NE(fi_mr_key(pair->b.mr), fi_mr_key(pair->a.mr));
  EXPECT_TRUE(Arrivals(*pair, 10).size() == 10);
  // An offset is no virtual address.
  iovec buffer = {pair->a.memory.data(), 8};
  fi_rma_iov remote = {0, 8, fi_mr_key(pair->b.mr)};
  const fi_msg_rma message = {&buffer, nullptr, 1, pair->to_b, &remote, 1, nullptr, 0};
  EXPECT_EQ(fi_writemsg(pair->a.ep, &message, FI_DELIVERY_COMPLETE), 0);
  EXPECT_TRUE(Eventually([&] { return pair->Progress(), !pair->a.errors.empty(); }));
}

TEST_F(FaultyLibfabricTest, LocalBuffersNeedDescriptors) {
  Set("mr", "local");
  auto pair = Connected();
  End& a = pair->a;
  EXPECT_EQ(fi_send(a.ep, a.memory.data(), 8, nullptr, pair->to_b, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_recv(a.ep, a.memory.data(), 8, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EINVAL);
  EXPECT_EQ(
      fi_read(a.ep, a.memory.data(), 8, nullptr, pair->to_b, 0, fi_mr_key(pair->b.mr), nullptr),
      -FI_EINVAL);
  char elsewhere[8];
  EXPECT_EQ(fi_send(a.ep, elsewhere, 8, fi_mr_desc(a.mr), pair->to_b, nullptr), -FI_EINVAL);
  EXPECT_EQ(Counters().bad_descriptor, 4U);
  EXPECT_EQ(Arrivals(*pair, 10).size(), 10U);
}

TEST_F(FaultyLibfabricTest, RegionsNeedMemoryAndAnEndpoint) {
  Set("mr", "allocated+endpoint");
  auto pair = Connected();
  EXPECT_EQ(Arrivals(*pair, 10).size(), 10U);
  fid_mr* mr = nullptr;
  void* gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, 4096);
  EXPECT_EQ(fi_mr_reg(pair->a.domain, gone, 8, FI_SEND, 0, 9, 0, &mr, nullptr), -FI_EFAULT);
  ASSERT_EQ(fi_mr_reg(pair->a.domain, pair->a.memory.data(), 8, FI_SEND, 0, 9, 0, &mr, nullptr), 0);
  EXPECT_EQ(fi_mr_key(mr), FI_KEY_NOTAVAIL);
  EXPECT_EQ(fi_mr_enable(mr), -FI_EOPBADSTATE);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST_F(FaultyLibfabricTest, TransmitQueueIsSmall) {
  Set("tx_size", "2");
  EXPECT_EQ(Find()->tx_attr->size, 2U);
  auto pair = Connected();
  L().faulty_libfabric_hold_writes(1);
  EXPECT_EQ(pair->Write(0, 8, 0), 0);
  EXPECT_EQ(pair->Write(0, 8, 0), 0);
  EXPECT_EQ(pair->Write(0, 8, 0), -FI_EAGAIN);
  EXPECT_EQ(pair->Receive(), 0);
  L().faulty_libfabric_hold_writes(0);
  EXPECT_EQ(pair->Try([&] { return pair->Write(0, 8, 0); }), 0);
  EXPECT_GT(Counters().tx_full, 0U);
}

}  // namespace
}  // namespace faulty_libfabric::testing
