// For tests of the double: finds its functions as a client would, and makes endpoints.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "control.h"

namespace faulty_libfabric::testing {

// clang-format off
#define FAULTY_LIBFABRIC_FUNCTIONS(X)                                                    \
  X(fi_getinfo) X(fi_freeinfo) X(fi_dupinfo) X(fi_fabric) X(fi_strerror) X(fi_version)   \
  X(faulty_libfabric_set) X(faulty_libfabric_reset)                                      \
  X(faulty_libfabric_counters) X(faulty_libfabric_hold_writes)
// clang-format on

struct Library {
#define FAULTY_LIBFABRIC_DECLARE(name) decltype(&::name) name = nullptr;
  FAULTY_LIBFABRIC_FUNCTIONS(FAULTY_LIBFABRIC_DECLARE)
#undef FAULTY_LIBFABRIC_DECLARE

  Library() {
    void* library = dlopen(FAULTY_LIBFABRIC_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
#define FAULTY_LIBFABRIC_FIND(function)                                       \
  function = reinterpret_cast<decltype(function)>(dlsym(library, #function)); \
  if (function == nullptr) std::abort();
    FAULTY_LIBFABRIC_FUNCTIONS(FAULTY_LIBFABRIC_FIND)
#undef FAULTY_LIBFABRIC_FIND
    dlclose(library);
  }
};

inline const Library& L() {
  static const Library* library = new Library;
  return *library;
}

inline FaultyLibfabricCounters Counters() {
  FaultyLibfabricCounters counters;
  L().faulty_libfabric_counters(&counters);
  return counters;
}

inline void Set(const char* key, const char* value) {
  EXPECT_EQ(L().faulty_libfabric_set(key, value), 0) << key << "=" << value;
}

constexpr int kAllModes =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;

struct InfoDeleter {
  void operator()(fi_info* info) const { L().fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoDeleter>;

// What an ordinary client asks for.
inline Info Hints() {
  Info hints(L().fi_dupinfo(nullptr));
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = kAllModes;
  return hints;
}

inline int GetInfo(const Info& hints, Info& found) {
  fi_info* list = nullptr;
  const int error =
      L().fi_getinfo(FI_VERSION(1, 14), "127.0.0.1", nullptr, FI_SOURCE, hints.get(), &list);
  found.reset(list);
  return error;
}

template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

// An endpoint with a domain, a completion queue and registered memory of its own.
class End {
 public:
  static constexpr size_t kBytes = 4096;

  explicit End(fi_info* info) : info_(info) {
    EXPECT_EQ(L().fi_fabric(info->fabric_attr, &fabric, nullptr), 0);
    EXPECT_EQ(fi_domain(fabric, info, &domain, nullptr), 0);
    fi_av_attr av_attributes = {};
    av_attributes.type = FI_AV_TABLE;
    EXPECT_EQ(fi_av_open(domain, &av_attributes, &av, nullptr), 0);
    fi_cq_attr cq_attributes = {};
    cq_attributes.format = FI_CQ_FORMAT_DATA;
    cq_attributes.wait_obj = FI_WAIT_FD;
    EXPECT_EQ(fi_cq_open(domain, &cq_attributes, &cq, nullptr), 0);
    EXPECT_EQ(fi_endpoint(domain, info, &ep, nullptr), 0);
    EXPECT_EQ(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
    EXPECT_EQ(fi_ep_bind(ep, &av->fid, 0), 0);
    EXPECT_EQ(fi_enable(ep), 0);
    EXPECT_EQ(Register(memory.data(), kBytes, &mr), 0);
  }
  ~End() {
    if (mr != nullptr) {
      EXPECT_EQ(fi_close(&mr->fid), 0);
    }
    EXPECT_EQ(fi_close(&ep->fid), 0);
    EXPECT_EQ(fi_close(&cq->fid), 0);
    EXPECT_EQ(fi_close(&av->fid), 0);
    EXPECT_EQ(fi_close(&domain->fid), 0);
    EXPECT_EQ(fi_close(&fabric->fid), 0);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  int Register(void* buffer, size_t bytes, fid_mr** opened) {
    constexpr uint64_t kAccess =
        FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    const int error = fi_mr_reg(domain, buffer, bytes, kAccess, 0, next_key_++, 0, opened, nullptr);
    if (error != 0 || (info_->domain_attr->mr_mode & FI_MR_ENDPOINT) == 0) return error;
    EXPECT_EQ(fi_mr_key(*opened), FI_KEY_NOTAVAIL);
    EXPECT_EQ(fi_mr_bind(*opened, &ep->fid, 0), 0);
    return fi_mr_enable(*opened);
  }
  fi_addr_t Insert(const End& other) {
    std::array<char, 128> name;
    size_t length = name.size();
    EXPECT_EQ(fi_getname(&other.ep->fid, name.data(), &length), 0);
    fi_addr_t address = FI_ADDR_UNSPEC;
    EXPECT_EQ(fi_av_insert(av, name.data(), 1, &address, 0, nullptr), 1);
    return address;
  }
  // Where a peer finds a byte of the memory.
  uint64_t At(size_t offset) const {
    const bool is_virtual = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    return offset + (is_virtual ? reinterpret_cast<uintptr_t>(memory.data()) : 0);
  }
  // Takes all completions and errors that there are.
  void Progress() {
    fi_cq_data_entry entry = {};
    ssize_t count = 0;
    while ((count = fi_cq_read(cq, &entry, 1)) == 1) done.push_back(entry);
    if (count != -FI_EAVAIL) return;
    fi_cq_err_entry error = {};
    EXPECT_EQ(fi_cq_readerr(cq, &error, 0), 1);
    errors.push_back(error);
  }
  std::vector<uint64_t> DataOf(uint64_t flag) const {
    std::vector<uint64_t> data;
    for (const fi_cq_data_entry& entry : done) {
      if ((entry.flags & flag) != 0) data.push_back(entry.data);
    }
    return data;
  }
  size_t Done(uint64_t flag) const { return DataOf(flag).size(); }

 private:
  fi_info* info_;
  uint64_t next_key_ = 1;

 public:
  std::vector<char> memory = std::vector<char>(kBytes);
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_av* av = nullptr;
  fid_cq* cq = nullptr;
  fid_ep* ep = nullptr;
  fid_mr* mr = nullptr;
  std::vector<fi_cq_data_entry> done;
  std::vector<fi_cq_err_entry> errors;
};

// Two endpoints that know each other. The first posts.
struct Pair {
  explicit Pair(Info made) : info(std::move(made)), a(info.get()), b(info.get()) {
    to_b = a.Insert(b);
    b.Insert(a);
  }

  void Progress() {
    a.Progress();
    b.Progress();
  }
  // Posts until the fabric takes it.
  ssize_t Try(const std::function<ssize_t()>& post) {
    ssize_t result = -FI_EAGAIN;
    EXPECT_TRUE(Eventually([&] {
      Progress();
      return (result = post()) != -FI_EAGAIN;
    }));
    return result;
  }
  ssize_t Write(size_t from, size_t bytes, size_t to, uint64_t data = 0, uint64_t flags = 0,
                void* context = nullptr) {
    iovec buffer = {a.memory.data() + from, bytes};
    void* descriptor = fi_mr_desc(a.mr);
    fi_rma_iov remote = {b.At(to), bytes, fi_mr_key(b.mr)};
    fi_msg_rma message = {&buffer, &descriptor, 1, to_b, &remote, 1, context, data};
    return fi_writemsg(a.ep, &message, flags | FI_COMPLETION);
  }
  ssize_t Send(uint64_t data, void* context = nullptr) {
    return fi_senddata(a.ep, a.memory.data(), 8, fi_mr_desc(a.mr), data, to_b, context);
  }
  ssize_t Receive(size_t at = 2048, void* context = nullptr) {
    return fi_recv(b.ep, b.memory.data() + at, 64, fi_mr_desc(b.mr), FI_ADDR_UNSPEC, context);
  }
  // A write and a message, so that the connection is there.
  void Connect() {
    ASSERT_EQ(Receive(), 0);
    ASSERT_EQ(Try([&] { return Send(0); }), 0);
    ASSERT_TRUE(Eventually([&] {
      Progress();
      return a.done.size() == 1 && b.done.size() == 1;
    }));
    a.done.clear();
    b.done.clear();
  }

  Info info;
  End a;
  End b;
  fi_addr_t to_b = 0;
};

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

}  // namespace faulty_libfabric::testing
