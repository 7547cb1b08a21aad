// Files of shared memory.
#include "fabric/host/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::host {
namespace {

constexpr int kSealExec = 0x0020;  // F_SEAL_EXEC of kernel 6.3

TEST(MemoryFile, NobodyMayRunIt) {
  FileDescriptor file;
  const Status status = CreateMemoryFile("test", 4096, &file);
  ASSERT_TRUE(status.ok()) << status.message();
  const int seals = fcntl(file.get(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_TRUE(CheckMemoryFile(file.get(), 4096, /*writable=*/true).ok());
  const FileDescriptor probe(memfd_create("probe", MFD_CLOEXEC | 0x0008U));
  if (!probe.valid()) GTEST_SKIP() << "this kernel does not know MFD_NOEXEC_SEAL";
  EXPECT_NE(seals & kSealExec, 0);
}

}  // namespace
}  // namespace rdma_transport::fabric::host
