// Registrations of accelerators' memory with verbs, over a pretend CUDA driver and the fake
// libibverbs: what cards read and write, and when a registration ends.
#include "memory/direct_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "memory/cuda_exporter.h"
#include "pretend_cuda/control.h"
#include "pretend_pci.h"
#include "verbs_pair.h"

namespace rdma_transport::memory {
namespace {

using testing::Fake;
using testing::FakeStats;
using testing::Side;

constexpr size_t kMiB = 1 << 20;

// Memory of GPUs: addresses without access, and the bytes behind them.
class Gpu {
 public:
  struct Memory {
    PretendAllocation allocation;
    int file;
    char* bytes;
  };

  static std::vector<Memory>& All() {
    static auto* all = new std::vector<Memory>;
    return *all;
  }
  // At `place`, or anywhere if null.
  static Memory Allocate(size_t size, void* place = nullptr) {
    static uint64_t last_id = 0;
    const int file = memfd_create("gpu", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(file, static_cast<off_t>(size)), 0);
    const int flags = MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED_NOREPLACE);
    void* address = mmap(place, size, PROT_NONE, flags, file, 0);
    void* bytes = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT_TRUE(address != MAP_FAILED && bytes != MAP_FAILED);
    All().push_back({{address, size, ++last_id}, file, static_cast<char*>(bytes)});
    return All().back();
  }
  static void Free(const Memory& memory) {
    munmap(memory.allocation.address, memory.allocation.size);
    munmap(memory.bytes, memory.allocation.size);
    close(memory.file);
    auto& all = All();
    for (auto it = all.begin(); it != all.end(); ++it) {
      if (it->allocation.id == memory.allocation.id) return static_cast<void>(all.erase(it));
    }
  }
  static int Find(const void* address, PretendAllocation* allocation, int* file) {
    for (const Memory& memory : All()) {
      const auto offset =
          static_cast<const char*>(address) - static_cast<const char*>(memory.allocation.address);
      if (offset < 0 || static_cast<uint64_t>(offset) >= memory.allocation.size) continue;
      *allocation = memory.allocation;
      if (file != nullptr) *file = fcntl(memory.file, F_DUPFD_CLOEXEC, 0);
      return 1;
    }
    return 0;
  }
};

char* At(const Gpu::Memory& memory, size_t offset = 0) {
  return static_cast<char*>(memory.allocation.address) + offset;
}

class DirectMemoryTest : public testing::VerbsPairTest {
 protected:
  void SetUp() override {
    VerbsPairTest::SetUp();
    PretendCudaServe(&Gpu::Find);
    PretendCudaDirect(1, 100);
  }
  void TearDown() override {
    of_a_.reset();
    of_b_.reset();
    while (!Gpu::All().empty()) Gpu::Free(Gpu::Memory(Gpu::All().back()));
    VerbsPairTest::TearDown();
    EXPECT_EQ(PretendCudaMistakes(), 0);
  }

  static std::unique_ptr<DirectMemory> Opened(const Side& side) {
    std::shared_ptr<const CudaDriver> driver;
    const Status opened = CudaDriver::Open(PRETEND_CUDA_LIBRARY, &driver);
    EXPECT_TRUE(opened.ok()) << opened.message();
    return std::make_unique<DirectMemory>(side.device.get(),
                                          std::make_unique<CudaExporter>(driver));
  }
  void Open(Settings settings = testing::OnFake()) {
    ConnectedPair(settings);
    of_a_ = Opened(a_);
    of_b_ = Opened(b_);
  }
  // Reads from memory of b into memory of a.
  Status Read(const char* source, char* destination, size_t length) {
    fabric::RemoteSpan span;
    EXPECT_TRUE(b_.channel->Locate(source, &span));
    EXPECT_GE(span.length, length);
    span.length = length;
    EXPECT_TRUE(b_.channel->Share(span.key).ok());
    EXPECT_TRUE(b_.Notify("shared").ok());
    const size_t notes = a_.handler->notes.size();
    EXPECT_TRUE(PollUntil([&] { return a_.handler->notes.size() > notes; }));
    const size_t ended = a_.handler->transfers.size();
    EXPECT_TRUE(a_.channel->Read(span, destination, 1).ok());
    EXPECT_TRUE(PollUntil([&] { return a_.handler->transfers.size() > ended; }));
    return a_.handler->transfers.back().second;
  }

  std::unique_ptr<DirectMemory> of_a_;
  std::unique_ptr<DirectMemory> of_b_;
};

TEST_F(DirectMemoryTest, CardsReadFromOneGpuIntoAnother) {
  for (const Isolation isolation : {Isolation::kAddress, Isolation::kOff}) {
    Settings settings = testing::OnFake();
    settings.verbs.isolation = isolation;
    ASSERT_NO_FATAL_FAILURE(Open(settings));
    const Gpu::Memory from = Gpu::Allocate(4 * kMiB);
    const Gpu::Memory to = Gpu::Allocate(2 * kMiB);
    for (size_t i = 0; i < 4 * kMiB; ++i) from.bytes[i] = static_cast<char>(i / 7);
    ASSERT_NE(of_b_->Register(At(from, kMiB), 3 * kMiB), nullptr);
    ASSERT_NE(of_a_->Register(At(to), 2 * kMiB), nullptr);
    ASSERT_TRUE(Read(At(from, kMiB + 64), At(to, 128), kMiB + 5).ok());
    EXPECT_EQ(std::string(to.bytes + 128, kMiB + 5), std::string(from.bytes + kMiB + 64, kMiB + 5));
    EXPECT_EQ(to.bytes[127], 0);
    EXPECT_EQ(to.bytes[128 + kMiB + 5], 0);
    fabric::RemoteSpan span;
    ASSERT_TRUE(b_.channel->Locate(At(from), &span));
    EXPECT_EQ(a_.channel->Write(At(to), {span.key, 0, 64}, 2).code(), Code::kPermissionDenied);
    of_a_.reset();
    of_b_.reset();
    DropDevices();
  }
}

// As with nvidia_peermem, where the driver exports no DMA-BUF.
TEST_F(DirectMemoryTest, TheKernelMayFindMemoryByItsAddress) {
  ASSERT_EQ(Fake().set("peer_memory", "1"), 0);
  PretendCudaDirect(/*dma_buf=*/0, 100);
  for (const Isolation isolation : {Isolation::kAddress, Isolation::kOff}) {
    Settings settings = testing::OnFake();
    settings.verbs.isolation = isolation;
    ASSERT_NO_FATAL_FAILURE(Open(settings));
    const Gpu::Memory from = Gpu::Allocate(kMiB);
    const Gpu::Memory to = Gpu::Allocate(kMiB);
    unsigned char resident = 0;
    if (mincore(At(from), 1, &resident) != 0) {
      GTEST_SKIP() << "mincore() of this emulator finds no memory without access";
    }
    std::string(kMiB, 'x').copy(from.bytes, kMiB);
    ASSERT_NE(of_b_->Register(At(from), kMiB), nullptr);
    ASSERT_NE(of_a_->Register(At(to), kMiB), nullptr);
    EXPECT_EQ(of_a_->Stats().refused, 0u);
    ASSERT_TRUE(Read(At(from, 64), At(to, 128), 1000).ok());
    EXPECT_EQ(std::string(to.bytes, 1200),
              std::string(128, 0) + std::string(1000, 'x') + std::string(72, 0));
    of_a_.reset();
    of_b_.reset();
    DropDevices();
  }
}

// The notifications stay on the first port.
TEST_F(DirectMemoryTest, ThePortNearestToTheGpuCarriesItsMemory) {
  const testing::PretendPci pci;
  testing::SetFake("devices", "fake_0,fake_1,fake_2");
  testing::SetFake("fake_0.sysfs", pci.Add("fake_0", "pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0"));
  testing::SetFake("fake_1.sysfs", pci.Add("fake_1", "pci0000:5d/0000:5d:00.0/0000:5e:00.0", "0"));
  testing::SetFake("fake_2.sysfs", pci.Add("fake_2", "pci0000:5d/0000:5d:00.0/0000:5f:00.0", "0"));
  const std::string gpu = pci.Add("gpu", "pci0000:5d/0000:5d:00.0/0000:60:00.0", "0") + "/device";
  Settings settings = testing::OnFake();
  settings.verbs.chunk = 64 << 10;
  ASSERT_NO_FATAL_FAILURE(Open(settings));
  const auto at_all = [&](const Side& side) {
    return side.channel->Route().find("fake_1:1, fake_2:1") != std::string::npos;
  };
  ASSERT_TRUE(PollUntil([&] { return at_all(a_) && at_all(b_); }));
  const Gpu::Memory memory = Gpu::Allocate(2 * kMiB);
  std::string(2 * kMiB, 'g').copy(memory.bytes, 2 * kMiB);
  for (const std::string& place : {gpu, std::string()}) {
    SCOPED_TRACE(place.empty() ? "not known" : "known");
    const auto host_of_a = Allocate(a_);
    const auto host_of_b = Allocate(b_);
    std::memset(host_of_b->address(), 'h', 2 * kMiB);
    std::unique_ptr<fabric::Region> of_a;
    std::unique_ptr<fabric::Region> of_b;
    const fabric::DeviceMemory exported = {memory.file, At(memory), 2 * kMiB, place};
    ASSERT_TRUE(a_.device->Import(exported, fabric::Access::kRemoteRead, &of_a).ok());
    ASSERT_TRUE(b_.device->Import(exported, fabric::Access::kRemoteRead, &of_b).ok());
    const auto bytes = [](const char* device) { return Fake().port_bytes(device, 1); };
    const uint64_t before[] = {bytes("fake_0"), bytes("fake_1"), bytes("fake_2")};
    ASSERT_TRUE(Read(At(memory), host_of_a->address(), 2 * kMiB).ok());
    EXPECT_EQ(std::string(host_of_a->address(), 2 * kMiB), std::string(2 * kMiB, 'g'));
    const Status into = Read(host_of_b->address(), At(memory), 2 * kMiB);
    ASSERT_TRUE(into.ok()) << into.message();
    EXPECT_EQ(std::string(memory.bytes, 2 * kMiB), std::string(2 * kMiB, 'h'));
    std::string(2 * kMiB, 'g').copy(memory.bytes, 2 * kMiB);
    if (place.empty()) {
      EXPECT_GE(bytes("fake_0") - before[0], 4 * kMiB);
    } else {
      EXPECT_GE(bytes("fake_1") - before[1], 4 * kMiB);
    }
  }
}

TEST_F(DirectMemoryTest, TheGpuIsNamedAsTheKernelDoes) {
  std::shared_ptr<const CudaDriver> driver;
  ASSERT_TRUE(CudaDriver::Open(PRETEND_CUDA_LIBRARY, &driver).ok());
  const Gpu::Memory memory = Gpu::Allocate(kMiB);
  EXPECT_EQ(CudaExporter(driver).FolderOf(At(memory, 100)), "/sys/bus/pci/devices/0000:3b:00.0");
  EXPECT_EQ(CudaExporter(driver).FolderOf(&memory), "");
}

TEST_F(DirectMemoryTest, AnAllocationIsRegisteredOnce) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const uint64_t before = FakeStats().registrations;
  const Gpu::Memory memory = Gpu::Allocate(kMiB);
  const fabric::Region* first = of_a_->Register(At(memory), kMiB).get();
  EXPECT_EQ(of_a_->Register(At(memory, 4096), 100).get(), first);
  EXPECT_EQ(FakeStats().registrations, before + 1);
  EXPECT_EQ(of_a_->Stats().registrations, 1u);
  EXPECT_EQ(of_a_->Stats().bytes, kMiB);
}

// The address alone would name bytes that nobody computes with any more.
TEST_F(DirectMemoryTest, AnAllocationAtTheAddressOfAFreedOneIsRegisteredAnew) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const Gpu::Memory to = Gpu::Allocate(kMiB);
  ASSERT_NE(of_a_->Register(At(to), kMiB), nullptr);
  const uint64_t registered = FakeStats().mrs;
  Gpu::Memory from = Gpu::Allocate(kMiB);
  for (const char letter : {'a', 'b', 'c'}) {
    std::string(kMiB, letter).copy(from.bytes, kMiB);
    ASSERT_NE(of_b_->Register(At(from), kMiB), nullptr);
    EXPECT_EQ(FakeStats().mrs, registered + 1);
    ASSERT_TRUE(Read(At(from), At(to), kMiB).ok());
    EXPECT_EQ(std::string(to.bytes, kMiB), std::string(kMiB, letter));
    void* const place = At(from);
    Gpu::Free(from);
    from = Gpu::Allocate(kMiB, place);
  }
}

TEST_F(DirectMemoryTest, RegistrationsOfFreedMemoryEndWithTheNextOne) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const uint64_t before = FakeStats().mrs;
  for (int i = 0; i < 5; ++i) {
    const Gpu::Memory memory = Gpu::Allocate(kMiB * static_cast<size_t>(i + 1));
    ASSERT_NE(of_a_->Register(At(memory), 100), nullptr);
    Gpu::Free(memory);
  }
  EXPECT_EQ(FakeStats().mrs, before + 1);
  of_a_.reset();
  EXPECT_EQ(FakeStats().mrs, before);
}

TEST_F(DirectMemoryTest, WhatIsInUseStaysRegistered) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const Gpu::Memory used = Gpu::Allocate(kMiB);
  auto held = of_a_->Register(At(used), kMiB);
  const uint64_t before = FakeStats().mrs;
  of_a_.reset();
  EXPECT_EQ(FakeStats().mrs, before);
  held.reset();
  EXPECT_EQ(FakeStats().mrs, before - 1);
}

TEST_F(DirectMemoryTest, WhatCannotBeRegisteredIsTriedOncePerAllocation) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const Gpu::Memory memory = Gpu::Allocate(kMiB);
  Fake().fail("reg_dmabuf_mr", 1, ENOMEM);
  EXPECT_EQ(of_a_->Register(At(memory), kMiB), nullptr);
  EXPECT_EQ(of_a_->Register(At(memory), kMiB), nullptr);
  PretendCudaDirect(/*dma_buf=*/0, 100);
  const Gpu::Memory other = Gpu::Allocate(kMiB);
  EXPECT_EQ(of_a_->Register(At(other), kMiB), nullptr);
  EXPECT_EQ(of_a_->Stats().refused, 2u);
  EXPECT_EQ(of_a_->Stats().registrations, 0u);
  PretendCudaDirect(1, 100);
  EXPECT_NE(of_a_->Register(At(Gpu::Allocate(kMiB)), kMiB), nullptr);
}

TEST_F(DirectMemoryTest, MemoryThatIsNoDevicesIsNotRegistered) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const std::vector<char> host(kMiB);
  EXPECT_EQ(of_a_->Register(host.data(), kMiB), nullptr);
  EXPECT_EQ(of_a_->Stats().refused, 0u);
}

TEST_F(DirectMemoryTest, AnIncompleteLastPageIsNotRegistered) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const Gpu::Memory memory = Gpu::Allocate(kMiB + 100);
  EXPECT_NE(of_a_->Register(At(memory), kMiB), nullptr);
  EXPECT_EQ(of_a_->Register(At(memory), kMiB + 1), nullptr);
  EXPECT_EQ(of_a_->Register(At(memory, kMiB), 1), nullptr);
}

TEST_F(DirectMemoryTest, WritesOfCardsAreFlushedWhereTheGpuNeedsIt) {
  ASSERT_NO_FATAL_FAILURE(Open());
  const Gpu::Memory memory = Gpu::Allocate(kMiB);
  const int before = PretendCudaFlushes();
  EXPECT_TRUE(of_a_->FlushWrites(At(memory)).ok());
  EXPECT_EQ(PretendCudaFlushes(), before);
  PretendCudaDirect(1, /*writes_ordering=*/0);
  EXPECT_TRUE(of_a_->FlushWrites(At(memory)).ok());
  EXPECT_EQ(PretendCudaFlushes(), before + 1);
}

TEST_F(DirectMemoryTest, OnlyVerbsImports) {
  ASSERT_NO_FATAL_FAILURE(OpenDevices());
  EXPECT_TRUE(a_.device->Imports());
  std::unique_ptr<fabric::Region> refused;
  const Status status =
      a_.device->Import({0, nullptr, kMiB, ""}, fabric::Access::kRemoteRead, &refused);
  EXPECT_NE(status.message().find("ibv_reg_dmabuf_mr"), std::string::npos) << status.message();
  Settings settings;
  settings.fabric = "shm";
  std::unique_ptr<fabric::Device> device;
  ASSERT_TRUE(fabric::OpenDevice(settings, &device).ok());
  EXPECT_FALSE(device->Imports());
  std::unique_ptr<fabric::Region> region;
  EXPECT_EQ(device->Import({}, fabric::Access::kRemoteRead, &region).code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace rdma_transport::memory
