// Files of shared memory.
#include "fabric/host/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

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

// A slab of an arena is a file.
TEST(MemoryFile, ThereMayBeMoreThanTheSoftLimitOnFiles) {
  const pid_t child = fork();
  if (child == 0) {
    rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < 128) _exit(2);
    files.rlim_cur = 64;
    setrlimit(RLIMIT_NOFILE, &files);
    std::vector<FileDescriptor> made(100);
    for (FileDescriptor& file : made) {
      if (!CreateMemoryFile("test", 4096, &file).ok()) _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "the hard limit is low here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace rdma_transport::fabric::host
