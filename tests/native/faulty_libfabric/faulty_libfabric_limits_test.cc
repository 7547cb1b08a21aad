// The double of libfabric: memory registration, limits and failures.

#include <sys/mman.h>

#include <memory>

#include "faulty_libfabric/harness.h"

namespace faulty_libfabric::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

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
  EXPECT_EQ(Arrivals(*pair, 3).size(), 3U) << "their data arrives";
}

TEST_F(FaultyLibfabricTest, MayAdvertiseWritesWithDataThatItDoesNotHave) {
  Set("writedata", "off");
  const Info wants = Hints();
  wants->caps |= FI_RMA_EVENT;
  wants->domain_attr->cq_data_size = 8;
  EXPECT_EQ(Error(wants), 0);
  auto pair = Connected();
  EXPECT_EQ(pair->Write(0, 8, 0, 1, FI_REMOTE_CQ_DATA), -FI_EBADFLAGS);
  EXPECT_EQ(fi_writedata(pair->a.ep, pair->a.memory.data(), 8, nullptr, 1, pair->to_b, 0,
                         fi_mr_key(pair->b.mr), nullptr),
            -FI_ENOSYS);
  EXPECT_EQ(pair->Write(0, 8, 0), 0);
  EXPECT_EQ(pair->Receive(), 0);
  EXPECT_EQ(pair->Send(1), 0) << "messages have it";
}

TEST_F(FaultyLibfabricTest, AnOldClientHasItsWritesAndReadsEmulated) {
  Set("version", "1.22");
  Set("rma_since", "1.18");
  uint64_t emulated = 0;
  for (const uint32_t version : {FI_VERSION(1, 14), FI_VERSION(1, 18)}) {
    Info info;
    ASSERT_EQ(GetInfo(Hints(), info, version), 0);
    EXPECT_EQ(info->fabric_attr->api_version, version);
    auto pair = std::make_unique<Pair>(std::move(info));
    pair->Connect();
    EXPECT_EQ(Arrivals(*pair, 3).size(), 3U);
    if (version == FI_VERSION(1, 14)) emulated += 3;
    EXPECT_EQ(Counters().emulated, emulated);
  }
}

TEST_F(FaultyLibfabricTest, AHostHasSeveralCards) {
  Set("provider", "efa+tcp");
  Set("nics", "100+100+0");
  Info list;
  ASSERT_EQ(GetInfo(Hints(), list), 0);
  std::vector<std::string> names;
  for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
    names.push_back(info->domain_attr->name);
    if (info->nic == nullptr) continue;
    const bool down = names.back() == "efa2";
    EXPECT_EQ(info->nic->link_attr->speed, down ? 0 : 100'000'000'000);
    EXPECT_EQ(info->nic->link_attr->state, down ? FI_LINK_DOWN : FI_LINK_UP);
    EXPECT_EQ(info->nic->bus_attr->attr.pci.bus_id, 0x10 + names.size() - 1);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"efa0", "efa1", "efa2", "lo"}));
  // Each can be opened, and reaches the others.
  const Info second(L().fi_dupinfo(list->next));
  auto pair = std::make_unique<Pair>(Info(L().fi_dupinfo(list.get())));
  pair->Connect();
  End other(second.get());
  EXPECT_NE(pair->a.Insert(other), FI_ADDR_UNSPEC);
  Set("broken", "efa1");
  EXPECT_EQ(Arrivals(*pair, 3).size(), 3U);
  Set("broken", "efa0");
  EXPECT_EQ(pair->Write(0, 8, 0), 0);
  EXPECT_TRUE(Eventually([&] { return pair->Progress(), pair->a.errors.size() == 1; }));
}

TEST_F(FaultyLibfabricTest, TheDirectFabricOfACardSendsShortMessages) {
  Set("provider", "efa");
  Set("nics", "100");
  Set("direct", "1");
  Info list;
  ASSERT_EQ(GetInfo(Hints(), list), 0);
  ASSERT_NE(list->next, nullptr);
  EXPECT_STREQ(list->fabric_attr->name, "efa-direct");
  EXPECT_STREQ(list->next->fabric_attr->name, "efa");
  EXPECT_STREQ(list->domain_attr->name, list->next->domain_attr->name);
  EXPECT_EQ(list->ep_attr->max_msg_size, list->next->ep_attr->max_msg_size);
  std::vector<char> bytes(8193);
  for (const fi_info* info : {list.get(), list->next}) {
    auto pair = std::make_unique<Pair>(Info(L().fi_dupinfo(info)));
    pair->Connect();
    const ssize_t sent =
        fi_send(pair->a.ep, bytes.data(), bytes.size(), nullptr, pair->to_b, nullptr);
    EXPECT_EQ(sent, info == list.get() ? -FI_EMSGSIZE : 0);
    EXPECT_EQ(pair->Write(0, End::kBytes, 0), 0);
  }
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
  const Info info = Find();
  EXPECT_EQ(info->ep_attr->max_msg_size, 1024U);
  auto pair = Connected();
  EXPECT_EQ(pair->Write(0, 1025, 0), -FI_EMSGSIZE);
  EXPECT_EQ(pair->Write(0, 1024, 0), 0);
  EXPECT_EQ(Counters().too_large, 1U);
  const Info wants = Hints();
  wants->ep_attr->max_msg_size = 1025;
  EXPECT_EQ(Error(wants), -FI_ENODATA);
}

TEST_F(FaultyLibfabricTest, OperationsFail) {
  auto pair = Connected();
  Pair& p = *pair;
  int contexts[3] = {};
  for (int& context : contexts) {
    if (&context == &contexts[1]) {
      EXPECT_EQ(L().faulty_libfabric_fail_next("write"), 0);
    }
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
  p.a.memory[0] = p.a.memory[1] = 'x';
  // What is reported as placed is placed.
  ASSERT_EQ(p.Write(1, 1, 1, 0, FI_DELIVERY_COMPLETE), 0);
  ASSERT_EQ(p.Write(0, 1, 0), 0);
  ASSERT_EQ(p.Send(1), 0);
  ASSERT_EQ(p.Send(2), 0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.b.Done(FI_RECV) == 1; }));
  EXPECT_EQ(p.b.done.back().data, 2U);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_WRITE) == 2; }));
  EXPECT_EQ(p.b.memory[0], 0);
  EXPECT_EQ(p.b.memory[1], 'x');
  EXPECT_EQ(Counters().lost, 2U);
}

}  // namespace
}  // namespace faulty_libfabric::testing
