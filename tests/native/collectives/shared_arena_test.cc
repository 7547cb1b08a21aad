// Memory that the members on this host read where it lies. The members of a test have a device each
// but one arena, which allocates from the device that was attached last, that of rank 0.
#include "collectives/shared_arena.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <utility>

#include "collectives/named_calls.h"
#include "members.h"

namespace rdma_transport::collectives {
namespace {

using testing::kSoon;
using testing::Members;
using Meshes = std::vector<std::unique_ptr<Mesh>>;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSlab = 64 * kMiB;  // memory of this size lies in a slab of its own

SharedArena& Arena() { return SharedArena::Get(); }

// The members of a test, on shared memory whatever fabric the environment names.
std::unique_ptr<Members> OnThisHost(int size) {
  return std::make_unique<Members>(
      std::vector<testing::FabricNames>(static_cast<size_t>(size), {"shm"}));
}

// Attaches a mesh for the life of this object.
class Attached {
 public:
  explicit Attached(Mesh* mesh) : mesh_(mesh) {
    const Status status = Arena().Attach(mesh);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ~Attached() { Arena().Detach(mesh_); }
  Attached(const Attached&) = delete;

 private:
  Mesh* const mesh_;
};

struct Release {
  void operator()(char* memory) const { EXPECT_TRUE(Arena().Free(memory)); }
};
using Memory = std::unique_ptr<char, Release>;

// Returns memory that begins and ends with a MiB of `value`, or null.
Memory Filled(size_t length, char value) {
  Memory memory(Arena().Allocate(length));
  if (memory == nullptr) return memory;
  const size_t part = std::min(length, kMiB);
  std::memset(memory.get(), value, part);
  std::memset(memory.get() + length - part, value, part);
  return memory;
}

// Returns what member `peer` reads of `data`, memory of the owner of `mesh`.
Status Read(const Mesh& mesh, const Mesh& peer, const char* data, size_t length,
            fabric::MappedSpan* mapped, Nanos timeout = kSoon) {
  fabric::RemoteSpan span;
  if (!mesh.FindShared(data, length, &span)) return Status(Code::kNotFound, "it is not shared");
  span.length = length;
  return peer.Map(mesh.rank(), span, {Now() + timeout, nullptr}, mapped);
}

void ExpectRead(const Mesh& mesh, const Mesh& peer, const char* data, size_t length) {
  fabric::MappedSpan mapped;
  const Status status = Read(mesh, peer, data, length, &mapped);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NE(mapped.data, data);
  EXPECT_EQ(std::memcmp(mapped.data, data, length), 0);
}

// Limits the arenas that are made while it exists.
class ArenaSize {
 public:
  explicit ArenaSize(size_t bytes) {
    setenv("RDMA_TRANSPORT_ARENA_SIZE", std::to_string(bytes).c_str(), 1);
  }
  ~ArenaSize() { unsetenv("RDMA_TRANSPORT_ARENA_SIZE"); }
};

// The first test: there is one arena in a process.
TEST(SharedArenaTest, NothingComesFromItBeforeAnotherMemberMayRead) {
  EXPECT_EQ(Arena().Allocate(kMiB), nullptr);
  const auto alone = OnThisHost(1);
  const Attached one(alone->groups[0]->mesh());
  EXPECT_EQ(Arena().Allocate(kMiB), nullptr);
  std::vector<char> other(kMiB);
  EXPECT_FALSE(Arena().Free(other.data()));
}

TEST(SharedArenaTest, MembersReadItWhereItLies) {
  const auto members = OnThisHost(3);
  Mesh* const mesh = members->groups[0]->mesh();
  const Attached attached(mesh);
  const Memory memory = Filled(kMiB, 'a');
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0u);
  fabric::MappedSpan mapped;
  for (const int peer : {1, 2}) {
    const Mesh& its = *members->groups[peer]->mesh();
    ExpectRead(*mesh, its, memory.get(), kMiB);
    ExpectRead(*mesh, its, memory.get() + 4095, 1);
    EXPECT_EQ(Read(*mesh, its, memory.get(), kSlab, &mapped).code(), Code::kNotFound);
    fabric::RemoteSpan span;
    ASSERT_TRUE(mesh->FindShared(memory.get(), kMiB, &span));
    span.length = kSlab;
    EXPECT_EQ(its.Map(0, span, {Now() + kSoon, nullptr}, &mapped).code(), Code::kDataLoss);
  }
  ASSERT_TRUE(Read(*mesh, *members->groups[1]->mesh(), memory.get(), kMiB, &mapped).ok());
  memory.get()[17] = 'b';
  EXPECT_EQ(mapped.data[17], 'b');
}

TEST(SharedArenaTest, EachMeshOfADeviceGetsAllSlabsWhileItIsAttached) {
  const auto members = OnThisHost(2);
  Mesh* const mesh = members->groups[0]->mesh();
  const Attached attached(mesh);
  const Memory first = Filled(kMiB, 'a');
  const Meshes more = members->Connect();
  fabric::MappedSpan mapped;
  EXPECT_EQ(Read(*more[0], *more[1], first.get(), kMiB, &mapped).code(), Code::kNotFound);
  Memory second;
  {
    const Attached later(more[0].get());
    second = Filled(kSlab, 'b');  // one more slab
    for (char* const data : {first.get(), second.get()}) {
      ExpectRead(*mesh, *members->groups[1]->mesh(), data, kMiB);
      ExpectRead(*more[0], *more[1], data, kMiB);
    }
  }
  const Memory third = Filled(kSlab, 'c');
  ExpectRead(*mesh, *members->groups[1]->mesh(), third.get(), kMiB);
  EXPECT_EQ(Read(*more[0], *more[1], third.get(), kSlab, &mapped).code(), Code::kNotFound);
  ExpectRead(*more[0], *more[1], second.get(), kMiB);  // until it closes
}

TEST(SharedArenaTest, AMeshOfAnotherDeviceDoesNotShareIt) {
  const auto members = OnThisHost(2);
  const Attached other(members->groups[1]->mesh());
  const Attached attached(members->groups[0]->mesh());
  const Memory memory = Filled(kMiB, 'a');
  fabric::MappedSpan mapped;
  ExpectRead(*members->groups[0]->mesh(), *members->groups[1]->mesh(), memory.get(), kMiB);
  EXPECT_EQ(
      Read(*members->groups[1]->mesh(), *members->groups[0]->mesh(), memory.get(), kMiB, &mapped)
          .code(),
      Code::kNotFound);
}

// What members have mapped they read to the end. Slabs take turns at one address.
TEST(SharedArenaTest, ASlabThatIsReturnedIsWithdrawn) {
  const ArenaSize limit(2 * kSlab);  // for one slab and not for two of them
  const auto members = OnThisHost(2);
  Mesh* const mesh = members->groups[0]->mesh();
  Mesh* const peer = members->groups[1]->mesh();
  const Attached attached(mesh);
  fabric::RemoteSpan before;
  fabric::MappedSpan held;
  char* address = nullptr;
  for (int i = 0; i < 4; ++i) {
    const size_t length = kSlab + static_cast<size_t>(i) * 2 * kMiB;  // too long for the last slab
    const char value = static_cast<char>('a' + i);
    const Memory memory = Filled(length, value);
    ASSERT_NE(memory, nullptr) << i;
    fabric::RemoteSpan span;
    ASSERT_TRUE(mesh->FindShared(memory.get(), length, &span));
    ExpectRead(*mesh, *peer, memory.get() + length - kMiB, kMiB);
    if (i > 0) {
      EXPECT_EQ(memory.get(), address);
      EXPECT_NE(span.key, before.key);
      EXPECT_EQ(held.data[0], value - 1);
      fabric::MappedSpan gone;
      before.length = 1;
      EXPECT_EQ(peer->Map(0, before, {Now(), nullptr}, &gone).code(), Code::kDeadlineExceeded);
    }
    address = memory.get();
    before = span;
    ASSERT_TRUE(Read(*mesh, *peer, memory.get(), kSlab, &held).ok());
  }
}

TEST(SharedArenaTest, AFullArenaReturnsNullAndOtherMemoryIsCopied) {
  const ArenaSize limit(16 * kMiB);
  const auto members = OnThisHost(2);
  std::vector<std::unique_ptr<NamedCalls>> calls;
  for (const int rank : {1, 0}) {  // the last one attached gets the arena
    calls.insert(calls.begin(),
                 std::make_unique<NamedCalls>(std::move(members->groups[rank]), NamedOptions()));
  }
  constexpr size_t kCount = 3 * kMiB;  // of 12 MiB
  const Memory first(Arena().Allocate(kCount * sizeof(float)));
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(Arena().Allocate(kCount * sizeof(float)), nullptr);
  const auto sum = [&](int rank, float* array) {
    std::fill_n(array, kCount, static_cast<float>(rank + 1));
    NamedCall call;
    call.name = "sum";
    call.collective = Collective::kAllReduce;
    NamedArray its;
    its.input = reinterpret_cast<const char*>(array);
    its.output = reinterpret_cast<char*>(array);
    its.rows = kCount;
    its.row_length = 1;
    its.shape = {kCount};
    call.arrays.push_back(its);
    std::mutex mu;
    std::condition_variable changed;
    bool ended = false;
    Status result;
    call.done = [&](const Status& status, const NamedResult&) {
      std::lock_guard<std::mutex> lock(mu);
      result = status;
      ended = true;
      changed.notify_all();
    };
    calls[rank]->Start(std::move(call));
    std::unique_lock<std::mutex> lock(mu);
    changed.wait(lock, [&] { return ended; });
    for (size_t i = 0; i < kCount && result.ok(); ++i) {
      if (array[i] != 3) return Status(Code::kInternal, "wrong at " + std::to_string(i));
    }
    return result;
  };
  std::vector<float> other(kCount);
  std::vector<float> mine(kCount);
  // In the second round no array lies in the arena.
  for (float* const array : {reinterpret_cast<float*>(first.get()), mine.data()}) {
    for (const Status& status :
         members->Each([&](int rank) { return sum(rank, rank == 0 ? array : other.data()); })) {
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
  members->Each([&](int rank) {
    calls[rank]->Close("the test has ended");
    calls[rank] = nullptr;
    return OkStatus();
  });
}

TEST(SharedArenaTest, AMemberThatIsLostDoesNotKeepOthersFromReading) {
  const auto members = OnThisHost(3);
  Mesh* const mesh = members->groups[0]->mesh();
  const Attached attached(mesh);
  const Memory before = Filled(kMiB, 'a');
  members->Cut(0, 1);
  const Patience patience = {Now() + kSoon, nullptr};
  while (mesh->Lost(1).ok() && Now() < patience.deadline) std::this_thread::yield();
  ASSERT_FALSE(mesh->Lost(1).ok());
  const Memory after = Filled(kSlab, 'b');
  ASSERT_NE(after, nullptr);
  for (char* const data : {before.get(), after.get()}) {
    ExpectRead(*mesh, *members->groups[2]->mesh(), data, kMiB);
  }
}

// The arrays of a program outlive its groups, and may be freed after them.
TEST(SharedArenaTest, MemoryOutlivesItsGroup) {
  Memory memory;
  {
    const auto members = OnThisHost(2);
    const Attached attached(members->groups[0]->mesh());
    memory = Filled(kSlab, 'a');
    ASSERT_NE(memory, nullptr);
  }
  EXPECT_EQ(memory.get()[kSlab - 1], 'a');
  const Memory more = Filled(kMiB, 'b');
  EXPECT_NE(more, nullptr);
}

TEST(SharedArenaTest, AForkedChildGetsNoneAndFreesNone) {
  const auto members = OnThisHost(2);
  Mesh* const mesh = members->groups[0]->mesh();
  const Attached attached(mesh);
  const Memory memory = Filled(kMiB, 'a');
  const pid_t child = fork();
  if (child == 0) {
    const bool none = Arena().Allocate(kMiB) == nullptr && Arena().Free(memory.get());
    std::vector<char> other(16);
    _exit(none && !Arena().Free(other.data()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory.get()[0], 'a');
  ExpectRead(*mesh, *members->groups[1]->mesh(), memory.get(), kMiB);
}

// Another thread may hold a lock when the process forks.
TEST(SharedArenaTest, AForkedChildWaitsForNoLockOfItsParent) {
  const auto members = OnThisHost(2);
  Mesh* const mesh = members->groups[0]->mesh();
  const Attached attached(mesh);
  const Memory memory = Filled(kMiB, 'a');
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) {
      EXPECT_TRUE(Arena().Attach(mesh).ok());
      NamedCalls::Publish(7, nullptr);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(static_cast<unsigned>(kSoon / kSecond));  // kills it
      Arena().Detach(mesh);
      _exit(Arena().Allocate(kMiB) == nullptr && NamedCalls::Find(7) == nullptr ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop.store(true);
  busy.join();
  ExpectRead(*mesh, *members->groups[1]->mesh(), memory.get(), kMiB);
}

TEST(SharedArenaTest, AForkedChildMakesNoArena) {
  const auto members = OnThisHost(2);
  const Attached attached(members->groups[0]->mesh());
  const pid_t child = fork();
  if (child == 0) _exit(Arena().Allocate(kMiB) == nullptr ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const Memory memory = Filled(kMiB, 'a');
  ExpectRead(*members->groups[0]->mesh(), *members->groups[1]->mesh(), memory.get(), kMiB);
}

// Threads allocate, read through a member, and free what others have allocated, while meshes of the
// same device come and go, and slabs, too.
TEST(SharedArenaTest, ThreadsAndMeshesDoNotDisturbEachOther) {
  const ArenaSize limit(3 * kSlab);
  const auto members = OnThisHost(2);
  Mesh* const mesh = members->groups[0]->mesh();
  const Attached attached(mesh);
  std::mutex mu;
  std::deque<Memory> shared;  // guarded by mu
  std::atomic<int> busy{4};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int i = 0; i < 60; ++i) {
        const size_t length = random() % 20 == 0 ? kSlab + random() % kMiB : 1 + random() % kMiB;
        Memory memory(Arena().Allocate(length));
        if (memory != nullptr) {
          const char value = static_cast<char>(random());
          memory.get()[0] = value;
          memory.get()[length - 1] = value;
          fabric::MappedSpan mapped;
          const Status status =
              Read(*mesh, *members->groups[1]->mesh(), memory.get(), length, &mapped);
          ASSERT_TRUE(status.ok()) << status.message();
          EXPECT_EQ(mapped.data[0], value);
          EXPECT_EQ(mapped.data[length - 1], value);
        }
        Memory other;  // freed after the lock
        std::lock_guard<std::mutex> lock(mu);
        shared.push_back(std::move(memory));
        if (shared.size() < 8) continue;
        std::swap(shared[random() % shared.size()], shared.front());
        other = std::move(shared.front());
        shared.pop_front();
      }
      --busy;
    });
  }
  while (busy.load() > 0) {
    const Meshes more = members->Connect();
    const Attached its(more[0].get());
    const Memory memory = Filled(kMiB, 'm');
    if (memory != nullptr) ExpectRead(*more[0], *more[1], memory.get(), kMiB);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace rdma_transport::collectives
