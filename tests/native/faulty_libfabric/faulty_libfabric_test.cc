// The double of libfabric, loaded as its clients load it: what passes through, and what it shows.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "faulty_libfabric/harness.h"

namespace faulty_libfabric::testing {
namespace {

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
  ASSERT_EQ(p.Write(0, 100, 0, 0, 0, &write_context), 0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_WRITE) == 1; }));
  EXPECT_EQ(p.a.done.back().op_context, &write_context);
  ASSERT_EQ(fi_read(p.a.ep, p.a.memory.data() + 1000, 100, descriptor, p.to_b, p.b.At(0), key,
                    &read_context),
            0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_READ) == 1; }));
  EXPECT_EQ(p.a.done.back().op_context, &read_context);
  EXPECT_EQ(std::memcmp(p.a.memory.data(), p.a.memory.data() + 1000, 100), 0);
  ASSERT_EQ(
      fi_writedata(p.a.ep, p.a.memory.data(), 8, descriptor, 8, p.to_b, p.b.At(500), key, nullptr),
      0);
  int receive_context = 0;
  ASSERT_EQ(p.Receive(2048, &receive_context), 0);
  ASSERT_EQ(fi_send(p.a.ep, p.a.memory.data(), 16, descriptor, p.to_b, nullptr), 0);
  ASSERT_TRUE(Eventually([&] {
    p.Progress();
    return p.b.Done(FI_REMOTE_WRITE) == 1 && p.b.Done(FI_RECV) == 1 && p.a.Done(FI_SEND) == 1;
  }));
  EXPECT_EQ(p.b.DataOf(FI_REMOTE_WRITE), std::vector<uint64_t>{8});
  EXPECT_EQ(p.b.done.back().op_context, &receive_context);
  EXPECT_EQ(p.b.done.back().len, 16U);
  EXPECT_EQ(std::memcmp(p.b.memory.data() + 500, p.a.memory.data(), 8), 0);
  EXPECT_EQ(std::memcmp(p.b.memory.data() + 2048, p.a.memory.data(), 16), 0);
}

TEST_F(FaultyLibfabricTest, WhatIsNotSupportedSaysSo) {
  auto pair = Connected();
  Pair& p = *pair;
  fid_cntr* counter = nullptr;
  EXPECT_EQ(fi_cntr_open(p.a.domain, nullptr, &counter, nullptr), -FI_ENOSYS);
  EXPECT_EQ(fi_inject(p.a.ep, p.a.memory.data(), 8, p.to_b), -FI_ENOSYS);
  EXPECT_EQ(fi_shutdown(p.a.ep, 0), -FI_ENOSYS);
  EXPECT_EQ(fi_close(&p.a.domain->fid), -FI_EBUSY);
  const Info hints = Hints();
  hints->caps |= FI_TAGGED;
  EXPECT_EQ(Error(hints), -FI_ENODATA);
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
