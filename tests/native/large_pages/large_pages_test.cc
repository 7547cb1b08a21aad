// The preloaded library refuses what a kernel with pages of 64 KiB refuses.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace {

constexpr size_t kPage = size_t{64} << 10;

class LargePagesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (sysconf(_SC_PAGESIZE) != kPage) GTEST_SKIP() << "the library is not preloaded";
  }
};

char* Mapped(size_t length) {
  void* mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(mapped, MAP_FAILED);
  return static_cast<char*>(mapped);
}

TEST_F(LargePagesTest, MappingsBeginAtPagesAndHaveWholeOnes) {
  char* mapped = Mapped(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapped) % kPage, 0u);
  mapped[kPage - 1] = 1;
  EXPECT_EQ(munmap(mapped, 1), 0);
}

TEST_F(LargePagesTest, FourKibibytesAreNoPage) {
  char* mapped = Mapped(2 * kPage);
  const auto refused = [](int result) { return result == -1 && errno == EINVAL; };
  EXPECT_TRUE(refused(munmap(mapped + 4096, 4096)));
  EXPECT_TRUE(refused(mprotect(mapped + 4096, 4096, PROT_READ)));
  EXPECT_TRUE(refused(madvise(mapped + 4096, 4096, MADV_DONTNEED)));
  EXPECT_EQ(mmap(mapped + 4096, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  EXPECT_EQ(munmap(mapped, 2 * kPage), 0);
}

}  // namespace
