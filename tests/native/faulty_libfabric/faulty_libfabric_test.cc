// The double of libfabric, loaded as its clients load it: each behavior really strikes.

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "faulty_libfabric/harness.h"

// The real library keeps some memory of its own.
extern "C" const char* __lsan_default_suppressions() { return "leak:libfabric.so.1\n"; }

namespace faulty_libfabric::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class FaultyLibfabricTest : public ::testing::Test {
 protected:
  void SetUp() override { L().faulty_libfabric_reset(); }
  // Nothing may be left behind.
  void TearDown() override {
    const FaultyLibfabricCounters counters = Counters();
    EXPECT_EQ(counters.fabrics + counters.domains + counters.endpoints +
                  counters.completion_queues + counters.address_vectors + counters.regions +
                  counters.registered_bytes,
              0U);
  }

  static Info Find() {
    Info info;
    EXPECT_EQ(GetInfo(Hints(), info), 0);
    return info;
  }
  static int Error(const Info& hints) {
    Info info;
    return GetInfo(hints, info);
  }
  static std::unique_ptr<Pair> Connected() {
    auto pair = std::make_unique<Pair>(Find());
    pair->Connect();
    return pair;
  }
  // Writes of 0, 1, 2... with a completion when they are placed; what the peer saw, in its order.
  static std::vector<uint64_t> Arrivals(Pair& pair, uint64_t count) {
    std::iota(pair.a.memory.begin(), pair.a.memory.end(), 0);
    for (uint64_t i = 0; i < count; ++i) {
      EXPECT_EQ(pair.Try([&] {
        return pair.Write(i * 8, 8, i * 8, i, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE);
      }),
                0);
    }
    EXPECT_TRUE(Eventually([&] {
      pair.Progress();
      return pair.a.Done(FI_WRITE) == count && pair.b.Done(FI_REMOTE_WRITE) == count;
    }));
    EXPECT_EQ(std::memcmp(pair.a.memory.data(), pair.b.memory.data(), count * 8), 0);
    return pair.b.DataOf(FI_REMOTE_WRITE);
  }
};

TEST_F(FaultyLibfabricTest, IsTheRealProviderUntilToldOtherwise) {
  const Info info = Find();
  EXPECT_EQ(info->ep_attr->type, FI_EP_RDM);
  EXPECT_EQ(info->domain_attr->mr_mode, 0);
  EXPECT_EQ(info->domain_attr->cq_data_size, 8U);
  EXPECT_NE(info->tx_attr->msg_order & FI_ORDER_SAS, 0U);
  auto pair = Connected();
  const std::vector<uint64_t> data = Arrivals(*pair, 100);
  EXPECT_TRUE(std::is_sorted(data.begin(), data.end()));
  const FaultyLibfabricCounters counters = Counters();
  EXPECT_EQ(counters.writes, 100U);
  EXPECT_EQ(counters.delayed_writes + counters.lost + counters.failed_completions +
                counters.late_completions + counters.eagain,
            0U);
}

TEST_F(FaultyLibfabricTest, MovesDataByEveryCall) {
  Set("mr", "local");
  auto pair = Connected();
  Pair& p = *pair;
  std::iota(p.a.memory.begin(), p.a.memory.end(), 1);
  int write_context = 0;
  int read_context = 0;
  const uint64_t key = fi_mr_key(p.b.mr);
  void* descriptor = fi_mr_desc(p.a.mr);
  ASSERT_EQ(
      fi_write(p.a.ep, p.a.memory.data(), 100, descriptor, p.to_b, p.b.At(0), key, &write_context),
      0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_WRITE) == 1; }));
  EXPECT_EQ(p.a.done.back().op_context, &write_context);
  ASSERT_EQ(fi_read(p.a.ep, p.a.memory.data() + 1000, 100, descriptor, p.to_b, p.b.At(0), key,
                    &read_context),
            0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_READ) == 1; }));
  EXPECT_EQ(p.a.done.back().op_context, &read_context);
  EXPECT_EQ(std::memcmp(p.a.memory.data(), p.a.memory.data() + 1000, 100), 0);
  ASSERT_EQ(fi_inject_write(p.a.ep, p.a.memory.data(), 8, p.to_b, p.b.At(500), key), 0);
  ASSERT_EQ(fi_inject_writedata(p.a.ep, p.a.memory.data(), 8, 7, p.to_b, p.b.At(508), key), 0);
  ASSERT_EQ(
      fi_writedata(p.a.ep, p.a.memory.data(), 8, descriptor, 8, p.to_b, p.b.At(516), key, nullptr),
      0);
  int receive_contexts[2] = {};
  ASSERT_EQ(p.Receive(2048, &receive_contexts[0]), 0);
  ASSERT_EQ(p.Receive(2148, &receive_contexts[1]), 0);
  ASSERT_EQ(fi_inject(p.a.ep, p.a.memory.data(), 16, p.to_b), 0);
  ASSERT_EQ(fi_send(p.a.ep, p.a.memory.data(), 16, descriptor, p.to_b, nullptr), 0);
  ASSERT_TRUE(Eventually([&] {
    p.Progress();
    return p.b.Done(FI_REMOTE_WRITE) == 2 && p.b.Done(FI_RECV) == 2 && p.a.Done(FI_SEND) == 1;
  }));
  EXPECT_EQ(p.b.DataOf(FI_REMOTE_WRITE), (std::vector<uint64_t>{7, 8}));
  EXPECT_EQ(p.b.done.back().op_context, &receive_contexts[1]);
  EXPECT_EQ(p.b.done.back().len, 16U);
  EXPECT_EQ(std::memcmp(p.b.memory.data() + 500, p.a.memory.data(), 8), 0);
  EXPECT_EQ(std::memcmp(p.b.memory.data() + 2148, p.a.memory.data(), 16), 0);
  // Injected ones show no completion.
  EXPECT_EQ(p.a.done.size(), 4U);
}

TEST_F(FaultyLibfabricTest, ShowsOnlyTheCompletionsAskedFor) {
  Set("tx_size", "2");
  Pair pair(Find(), FI_WAIT_FD, FI_SELECTIVE_COMPLETION);
  const uint64_t key = fi_mr_key(pair.b.mr);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(pair.Try([&] {
      return fi_write(pair.a.ep, pair.a.memory.data(), 8, nullptr, pair.to_b, 0, key, nullptr);
    }),
              0);
  }
  ASSERT_EQ(pair.Try([&] { return pair.Write(0, 8, 0, 0, FI_DELIVERY_COMPLETE); }), 0);
  ASSERT_TRUE(Eventually([&] { return pair.Progress(), !pair.a.done.empty(); }));
  EXPECT_EQ(pair.a.done.size(), 1U);
}

TEST_F(FaultyLibfabricTest, OneBufferTakesManyMessages) {
  auto pair = Connected();
  int context = 0;
  iovec buffer = {pair->b.memory.data(), 32};
  fi_msg message = {&buffer, nullptr, 1, FI_ADDR_UNSPEC, &context, 0};
  size_t least = 16;
  ASSERT_EQ(
      fi_setopt(&pair->b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof least), 0);
  ASSERT_EQ(fi_recvmsg(pair->b.ep, &message, FI_MULTI_RECV), 0);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(pair->Send(i), 0);
  ASSERT_TRUE(Eventually([&] { return pair->Progress(), pair->b.Done(FI_RECV) == 3; }));
  for (const fi_cq_data_entry& entry : pair->b.done) EXPECT_EQ(entry.op_context, &context);
  EXPECT_EQ(pair->b.DataOf(FI_RECV), (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(pair->b.Done(FI_MULTI_RECV), 1U);
}

TEST_F(FaultyLibfabricTest, WhatIsNotSupportedSaysSo) {
  auto pair = Connected();
  Pair& p = *pair;
  fid_cntr* counter = nullptr;
  EXPECT_EQ(fi_cntr_open(p.a.domain, nullptr, &counter, nullptr), -FI_ENOSYS);
  EXPECT_EQ(fi_tsend(p.a.ep, p.a.memory.data(), 8, nullptr, p.to_b, 1, nullptr), -FI_ENOSYS);
  EXPECT_EQ(fi_shutdown(p.a.ep, 0), -FI_ENOSYS);
  EXPECT_EQ(fi_close(&p.a.domain->fid), -FI_EBUSY);
  const Info hints = Hints();
  hints->caps |= FI_TAGGED;
  EXPECT_EQ(Error(hints), -FI_ENODATA);
}

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

TEST_F(FaultyLibfabricTest, OnlySendsKeepTheirOrder) {
  Set("order", "sas");
  const Info info = Find();
  EXPECT_EQ(info->tx_attr->msg_order, FI_ORDER_SAS);
  auto pair = Connected();
  bool overtaken = false;
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(pair->Try([&] { return pair->Receive(); }), 0);
    ASSERT_EQ(pair->Try([&] { return pair->Write(0, 8, 0, i, FI_REMOTE_CQ_DATA); }), 0);
    ASSERT_EQ(pair->Try([&] { return pair->Send(i); }), 0);
  }
  ASSERT_TRUE(Eventually([&] {
    pair->Progress();
    return pair->b.Done(FI_RECV) == 100 && pair->b.Done(FI_REMOTE_WRITE) == 100;
  }));
  const std::vector<uint64_t> messages = pair->b.DataOf(FI_RECV);
  EXPECT_TRUE(std::is_sorted(messages.begin(), messages.end()));
  uint64_t received = 0;
  for (const fi_cq_data_entry& entry : pair->b.done) {
    if ((entry.flags & FI_RECV) != 0) ++received;
    if ((entry.flags & FI_REMOTE_WRITE) != 0 && received > entry.data) overtaken = true;
  }
  EXPECT_TRUE(overtaken);
  EXPECT_EQ(Counters().overtaken_sends, 0U);
  EXPECT_GT(Counters().overtaken_writes, 0U);
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

TEST_F(FaultyLibfabricTest, RemoteDataHasItsSize) {
  Set("cq_data", "4");
  const Info wants = Hints();
  wants->domain_attr->cq_data_size = 8;
  EXPECT_EQ(Error(wants), -FI_ENODATA);
  EXPECT_EQ(Find()->domain_attr->cq_data_size, 4U);
  auto pair = Connected();
  EXPECT_EQ(pair->Write(0, 8, 0, uint64_t{1} << 32, FI_REMOTE_CQ_DATA), -FI_EINVAL);
  EXPECT_EQ(pair->Send(uint64_t{1} << 32), -FI_EINVAL);
  EXPECT_EQ(pair->Write(0, 8, 0, 0xffffffff, FI_REMOTE_CQ_DATA), 0);
  ASSERT_TRUE(Eventually([&] { return pair->Progress(), pair->b.Done(FI_REMOTE_WRITE) == 1; }));
  EXPECT_EQ(pair->b.done.back().data, 0xffffffffU);
  Set("cq_data", "0");
  EXPECT_EQ(pair->Write(0, 8, 0, 1, FI_REMOTE_CQ_DATA), -FI_ENOSYS);
  EXPECT_EQ(pair->Write(0, 8, 0), 0);
  EXPECT_EQ(Counters().bad_data, 3U);
}

TEST_F(FaultyLibfabricTest, MayLackEventsOfWrites) {
  Set("rma_event", "off");
  const Info wants = Hints();
  wants->caps |= FI_RMA_EVENT;
  EXPECT_EQ(Error(wants), -FI_ENODATA);
  EXPECT_EQ(Counters().refused_hints, 1U);
  auto pair = Connected();
  EXPECT_EQ(pair->Write(0, 8, 0, 1, FI_REMOTE_CQ_DATA), -FI_ENOSYS);
  EXPECT_EQ(pair->Write(0, 8, 0), 0);
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

TEST_F(FaultyLibfabricTest, KeysAreShort) {
  Set("mr", "prov_key");
  Set("mr_key_size", "1");
  EXPECT_EQ(Find()->domain_attr->mr_key_size, 1U);
  {
    auto pair = Connected();
    EXPECT_LT(fi_mr_key(pair->b.mr), 256U);
    EXPECT_EQ(Arrivals(*pair, 10).size(), 10U);
  }
  Set("mr", "");
  auto pair = Connected();
  fid_mr* mr = nullptr;
  EXPECT_EQ(fi_mr_reg(pair->a.domain, pair->a.memory.data(), 8, FI_SEND, 0, 256, 0, &mr, nullptr),
            -FI_EKEYREJECTED);
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
  EXPECT_EQ(pair->Receive(), 0);
  EXPECT_EQ(fi_inject(a.ep, elsewhere, 8, pair->to_b), 0);
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

TEST_F(FaultyLibfabricTest, RegistrationsFail) {
  auto pair = Connected();
  fid_mr* mr = nullptr;
  char buffer[100];
  Set("mr_fail", "2");
  ASSERT_EQ(pair->a.Register(buffer, 100, &mr), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  EXPECT_EQ(pair->a.Register(buffer, 100, &mr), -FI_ENOMEM);
  EXPECT_EQ(pair->a.Register(buffer, 100, &mr), -FI_ENOMEM);
  Set("mr_fail", "0");
  Set("mr_limit", "8242");
  ASSERT_EQ(pair->a.Register(buffer, 50, &mr), 0);
  fid_mr* more = nullptr;
  EXPECT_EQ(pair->a.Register(buffer, 1, &more), -FI_ENOSPC);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  EXPECT_EQ(Counters().refused_registrations, 3U);
}

TEST_F(FaultyLibfabricTest, PostsAreToBeTriedAgain) {
  auto pair = Connected();
  Set("eagain", "50");
  EXPECT_EQ(Arrivals(*pair, 100).size(), 100U);
  EXPECT_GT(Counters().eagain, 10U);
  Set("eagain", "0");
  L().faulty_libfabric_eagain_for(30);
  const auto start = steady_clock::now();
  EXPECT_EQ(pair->Receive(), -FI_EAGAIN);
  EXPECT_EQ(pair->Try([&] { return pair->Send(1); }), 0);
  EXPECT_GE(steady_clock::now() - start, milliseconds(29));
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

TEST_F(FaultyLibfabricTest, SizesAreLimited) {
  Set("max_msg", "1024");
  Set("inject", "16");
  const Info info = Find();
  EXPECT_EQ(info->ep_attr->max_msg_size, 1024U);
  EXPECT_EQ(info->tx_attr->inject_size, 16U);
  auto pair = Connected();
  EXPECT_EQ(pair->Write(0, 1025, 0), -FI_EMSGSIZE);
  EXPECT_EQ(pair->Write(0, 1024, 0), 0);
  EXPECT_EQ(fi_inject(pair->a.ep, pair->a.memory.data(), 17, pair->to_b), -FI_EMSGSIZE);
  EXPECT_EQ(fi_inject(pair->a.ep, pair->a.memory.data(), 16, pair->to_b), 0);
  EXPECT_EQ(Counters().too_large, 2U);
  const Info wants = Hints();
  wants->tx_attr->inject_size = 17;
  EXPECT_EQ(Error(wants), -FI_ENODATA);
}

TEST_F(FaultyLibfabricTest, OperationsFail) {
  auto pair = Connected();
  Pair& p = *pair;
  Set("fail_completion", "2");
  int contexts[3] = {};
  for (int& context : contexts) {
    ASSERT_EQ(p.Write(0, 8, 0, 0, FI_DELIVERY_COMPLETE, &context), 0);
  }
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_WRITE) == 2; }));
  ASSERT_EQ(p.a.errors.size(), 1U);
  EXPECT_EQ(p.a.errors[0].op_context, &contexts[1]);
  EXPECT_EQ(p.a.errors[0].err, FI_EIO);
  EXPECT_NE(p.a.errors[0].flags & FI_WRITE, 0U);
  EXPECT_EQ(L().faulty_libfabric_fail_next("receive"), 0);
  EXPECT_EQ(L().faulty_libfabric_fail_next("nothing"), EINVAL);
  ASSERT_EQ(p.Write(0, 8, 0), 0);
  ASSERT_EQ(p.Receive(2048, &contexts[0]), 0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.b.errors.size() == 1; }));
  EXPECT_EQ(p.b.errors[0].op_context, &contexts[0]);
  EXPECT_EQ(Counters().failed_completions, 2U);
}

TEST_F(FaultyLibfabricTest, WhatIsLostCompletes) {
  auto pair = Connected();
  Pair& p = *pair;
  ASSERT_EQ(p.Receive(), 0);
  EXPECT_EQ(L().faulty_libfabric_lose_next("read"), EINVAL);
  EXPECT_EQ(L().faulty_libfabric_lose_next("send"), 0);
  EXPECT_EQ(L().faulty_libfabric_lose_next("write"), 0);
  p.a.memory[0] = 'x';
  ASSERT_EQ(p.Write(0, 1, 0, 0, FI_DELIVERY_COMPLETE), 0);
  ASSERT_EQ(p.Send(1), 0);
  ASSERT_EQ(p.Send(2), 0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.b.Done(FI_RECV) == 1; }));
  EXPECT_EQ(p.b.done.back().data, 2U);
  EXPECT_EQ(p.a.Done(FI_WRITE), 1U);
  EXPECT_EQ(p.b.memory[0], 0);
  EXPECT_EQ(Counters().lost, 2U);
}

TEST_F(FaultyLibfabricTest, ReceivesAreCanceled) {
  auto pair = Connected();
  int context = 0;
  ASSERT_EQ(pair->Receive(2048, &context), 0);
  EXPECT_EQ(fi_cancel(&pair->b.ep->fid, &context), 0);
  ASSERT_TRUE(Eventually([&] { return pair->Progress(), pair->b.errors.size() == 1; }));
  EXPECT_EQ(pair->b.errors[0].op_context, &context);
  EXPECT_EQ(pair->b.errors[0].err, FI_ECANCELED);
}

// Sleeps on the queue until it has a completion. How often it woke for nothing.
int SleepUntilDone(End& end) {
  int wait = -1;
  EXPECT_EQ(fi_control(&end.cq->fid, FI_GETWAIT, &wait), 0);
  fid* waited = &end.cq->fid;
  for (int woken = 0;; ++woken) {
    end.Progress();
    if (!end.done.empty()) return woken;
    if (fi_trywait(end.fabric, &waited, 1) != 0) continue;
    pollfd wanted = {wait, POLLIN, 0};
    if (poll(&wanted, 1, 10000) != 1) {
      ADD_FAILURE() << "nothing woke the client";
      return woken;
    }
  }
}

TEST_F(FaultyLibfabricTest, LateCompletionsWakeSleepers) {
  auto pair = Connected();
  Set("late", "20000");
  for (int i = 0; i < 10; ++i) {
    pair->a.done.clear();
    ASSERT_EQ(pair->Try([&] { return pair->Write(0, 8, 0); }), 0);
    EXPECT_LT(SleepUntilDone(pair->a), 10);
  }
  EXPECT_GE(Counters().late_completions, 10U);
  EXPECT_EQ(Counters().reordered_completions, 0U);
  EXPECT_GT(Counters().trywaits, 0U);
}

TEST_F(FaultyLibfabricTest, SleepsInARead) {
  auto pair = Connected();
  Set("late", "20000");
  fi_cq_data_entry entry = {};
  EXPECT_EQ(fi_cq_sread(pair->a.cq, &entry, 1, nullptr, 1), -FI_EAGAIN);
  ASSERT_EQ(pair->Write(0, 8, 0), 0);
  EXPECT_EQ(fi_cq_sread(pair->a.cq, &entry, 1, nullptr, 10000), 1);
  EXPECT_EQ(fi_cq_signal(pair->a.cq), 0);
  EXPECT_EQ(fi_cq_sread(pair->a.cq, &entry, 1, nullptr, -1), -FI_EAGAIN);
}

TEST_F(FaultyLibfabricTest, WaitingWritesWakeSleepers) {
  Set("order", "none");
  Set("delay_us", "20000");
  auto pair = Connected();
  for (int i = 0; i < 20; ++i) {
    pair->a.done.clear();
    ASSERT_EQ(pair->Try([&] { return pair->Write(0, 8, 0); }), 0);
    EXPECT_LT(SleepUntilDone(pair->a), 10);
  }
  EXPECT_GT(Counters().delayed_writes, 0U);
}

TEST_F(FaultyLibfabricTest, DescriptorMayBeStuck) {
  for (const char* wait : {"fd", "stuck"}) {
    Set("wait", wait);
    auto pair = Connected();
    int descriptor = -1;
    ASSERT_EQ(fi_control(&pair->a.cq->fid, FI_GETWAIT, &descriptor), 0);
    fid* waited = &pair->a.cq->fid;
    ASSERT_TRUE(Eventually([&] { return fi_trywait(pair->a.fabric, &waited, 1) == 0; }));
    pollfd wanted = {descriptor, POLLIN, 0};
    // Later releases than 1.18 are never stuck.
    const bool stuck = poll(&wanted, 1, 0) == 1;
    if (std::strcmp(wait, "fd") == 0) {
      EXPECT_FALSE(stuck);
    } else if (L().fi_version() < FI_VERSION(1, 18)) {
      EXPECT_TRUE(stuck);
    }
  }
}

TEST_F(FaultyLibfabricTest, PeerWakesSleeper) {
  auto pair = Connected();
  ASSERT_EQ(pair->Receive(), 0);
  std::thread sleeper([&] { SleepUntilDone(pair->b); });
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_EQ(pair->Send(5), 0);
  ASSERT_TRUE(Eventually([&] { return pair->a.Progress(), pair->a.Done(FI_SEND) == 1; }));
  sleeper.join();
  EXPECT_EQ(pair->b.DataOf(FI_RECV), std::vector<uint64_t>{5});
}

TEST_F(FaultyLibfabricTest, ServesManyThreads) {
  Set("order", "none");
  Set("late", "300");
  Set("eagain", "10");
  Set("delay_us", "300");
  auto pair = Connected();
  constexpr size_t kThreads = 3;
  constexpr size_t kWrites = 200;
  std::iota(pair->a.memory.begin(), pair->a.memory.end(), 0);
  std::vector<std::thread> writers;
  for (size_t t = 0; t < kThreads; ++t) {
    writers.emplace_back([&pair, t] {
      for (size_t i = 0; i < kWrites; ++i) {
        const size_t at = t * 1000 + i;
        while (pair->Write(at, 1, at, at, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE) != 0) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::thread peer([&] {
    EXPECT_TRUE(Eventually([&] {
      pair->b.Progress();
      return pair->b.Done(FI_REMOTE_WRITE) == kThreads * kWrites;
    }));
    // Serves until the acknowledgments are out.
    for (int i = 0; i < 1000; ++i) pair->b.Progress();
  });
  int descriptor = -1;
  ASSERT_EQ(fi_control(&pair->a.cq->fid, FI_GETWAIT, &descriptor), 0);
  fid* waited = &pair->a.cq->fid;
  EXPECT_TRUE(Eventually([&] {
    pair->a.Progress();
    pollfd wanted = {descriptor, POLLIN, 0};
    if (fi_trywait(pair->a.fabric, &waited, 1) == 0) poll(&wanted, 1, 100);
    return pair->a.Done(FI_WRITE) == kThreads * kWrites;
  }));
  for (std::thread& writer : writers) writer.join();
  peer.join();
  for (size_t t = 0; t < kThreads; ++t) {
    EXPECT_EQ(
        std::memcmp(pair->a.memory.data() + t * 1000, pair->b.memory.data() + t * 1000, kWrites),
        0);
  }
}

TEST_F(FaultyLibfabricTest, LateCompletionsAreUnorderedIfTheProviderIs) {
  Set("order", "none");
  Set("late", "5000");
  auto pair = Connected();
  EXPECT_EQ(Arrivals(*pair, 100).size(), 100U);
  EXPECT_GT(Counters().reordered_completions, 0U);
}

TEST_F(FaultyLibfabricTest, MayHaveNoWaitDescriptor) {
  Set("wait", "none");
  auto pair = std::make_unique<Pair>(Find(), FI_WAIT_NONE);
  pair->Connect();
  fi_cq_attr attributes = {};
  attributes.wait_obj = FI_WAIT_FD;
  fid_cq* cq = nullptr;
  EXPECT_EQ(fi_cq_open(pair->a.domain, &attributes, &cq, nullptr), -FI_ENOSYS);
}

TEST_F(FaultyLibfabricTest, ShowsProvidersInOrder) {
  Set("provider", "efa+tcp");
  std::vector<std::string> names;
  const Info info = Find();
  for (const fi_info* at = info.get(); at != nullptr; at = at->next) {
    names.push_back(at->fabric_attr->prov_name);
  }
  ASSERT_GE(names.size(), 2U);
  EXPECT_EQ(names.front(), "efa");
  EXPECT_EQ(names.back(), "tcp");
  const Info wants = Hints();
  wants->fabric_attr->prov_name = strdup("tcp");
  Info found;
  ASSERT_EQ(GetInfo(wants, found), 0);
  EXPECT_STREQ(found->fabric_attr->prov_name, "tcp");
  std::free(wants->fabric_attr->prov_name);
  wants->fabric_attr->prov_name = strdup("cxi");
  EXPECT_EQ(Error(wants), -FI_ENODATA);
  EXPECT_EQ(Arrivals(*Connected(), 10).size(), 10U);
}

TEST_F(FaultyLibfabricTest, MayBeOldOrFindNothing) {
  Set("version", "1.13");
  EXPECT_EQ(L().fi_version(), FI_VERSION(1, 13));
  EXPECT_EQ(Error(Hints()), -FI_ENOSYS);
  L().faulty_libfabric_reset();
  EXPECT_GE(L().fi_version(), FI_VERSION(1, 14));
  Set("no_provider", "1");
  EXPECT_EQ(Error(Hints()), -FI_ENODATA);
}

TEST_F(FaultyLibfabricTest, RefusesWhatItDoesNotKnow) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, const char*>>{{"oder", "none"},
                                                        {"order", "some"},
                                                        {"eagain", "101"},
                                                        {"eagain", "-1"},
                                                        {"mr", "prov_key+what"},
                                                        {"version", "1"},
                                                        {"late", ""}}) {
    EXPECT_EQ(L().faulty_libfabric_set(key, value), EINVAL) << key << "=" << value;
  }
}

// Some tests need another process, which runs one of these instead of tests and exits with its
// result. The first tells the error of fi_getinfo().
int TellError() {
  Info info;
  const int error = GetInfo(Hints(), info);
  return error == 0 && info->domain_attr->cq_data_size == 4 ? 100 : -error;
}
// Tells who it is, and exits when a write came.
int Serve() {
  Info info;
  if (const int error = GetInfo(Hints(), info); error != 0) return -error;
  End end(info.get());
  std::array<char, 128> name = {};
  size_t length = name.size();
  fi_getname(&end.ep->fid, name.data(), &length);
  const uint64_t where[2] = {end.At(0), fi_mr_key(end.mr)};
  std::fwrite(name.data(), name.size(), 1, stdout);
  std::fwrite(where, sizeof where, 1, stdout);
  std::fflush(stdout);
  const bool came = Eventually([&] { return end.Progress(), end.Done(FI_REMOTE_WRITE) == 1; });
  for (int i = 0; i < 10000; ++i) end.Progress();
  return came && end.memory[0] == 'x' ? 100 : 1;
}
[[maybe_unused]] const bool is_test = [] {
  const char* child = std::getenv("FAULTY_LIBFABRIC_CHILD");
  if (child == nullptr) return true;
  std::_Exit(std::strcmp(child, "serve") == 0 ? Serve() : TellError());
}();

std::string Child(const std::string& what, const std::string& environment) {
  return "FAULTY_LIBFABRIC_CHILD=" + what + " FAULTY_LIBFABRIC='" + environment + "' /proc/" +
         std::to_string(getpid()) + "/exe 2>/dev/null";
}

int ErrorWith(const std::string& environment) {
  return WEXITSTATUS(std::system(Child("error", environment).c_str()));
}

TEST_F(FaultyLibfabricTest, ServesOtherProcesses) {
  Set("mr", "prov_key+virt_addr");
  Info info = Find();
  End end(info.get());
  FILE* peer = popen(Child("serve", "mr=prov_key+virt_addr,order=none").c_str(), "r");
  ASSERT_NE(peer, nullptr);
  std::array<char, 128> name = {};
  uint64_t where[2] = {};
  ASSERT_EQ(std::fread(name.data(), name.size(), 1, peer), 1U);
  ASSERT_EQ(std::fread(where, sizeof where, 1, peer), 1U);
  fi_addr_t address = FI_ADDR_UNSPEC;
  ASSERT_EQ(fi_av_insert(end.av, name.data(), 1, &address, 0, nullptr), 1);
  end.memory[0] = 'x';
  ASSERT_TRUE(Eventually([&] {
    end.Progress();
    return fi_writedata(end.ep, end.memory.data(), 1, nullptr, 1, address, where[0], where[1],
                        nullptr) == 0;
  }));
  ASSERT_TRUE(Eventually([&] { return end.Progress(), !end.done.empty(); }));
  EXPECT_EQ(WEXITSTATUS(pclose(peer)), 100);
}

TEST(FaultyLibfabricEnvironment, IsReadAtLoad) {
  EXPECT_EQ(ErrorWith("order=none cq_data=4,late=10"), 100);
  EXPECT_EQ(ErrorWith("no_provider=1"), FI_ENODATA);
  EXPECT_EQ(ErrorWith("oder=none"), FI_EINVAL);
  EXPECT_EQ(ErrorWith("order"), FI_EINVAL);
}

}  // namespace
}  // namespace faulty_libfabric::testing
