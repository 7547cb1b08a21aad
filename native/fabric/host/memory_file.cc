#include "fabric/host/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "fabric/host/control_group.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace rdma_transport::fabric::host {
namespace {

size_t MeminfoBytes(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  size_t kilobytes = 0;
  std::string unit;
  while (file >> name >> kilobytes) {
    if (name == field + ":") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return std::numeric_limits<size_t>::max();
}

// Nobody runs what is in it. With vm.memfd_noexec=2, kernels from 6.3 on refuse files that do not
// say so (Documentation/userspace-api/mfd_noexec.rst); those before do not know the flag.
int CreateOnce(const char* name) {
  const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (file >= 0 || errno != EINVAL) return file;
  return memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

// The usual soft limit of 1024 is for programs that call select(). A large arena has more slabs.
bool MayHaveMoreFiles() {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) return false;
  files.rlim_cur = files.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &files) == 0;
}

int CreateFile(const char* name) {
  const int file = CreateOnce(name);
  return file < 0 && errno == EMFILE && MayHaveMoreFiles() ? CreateOnce(name) : file;
}

// Kernels before 5.1 do not support this seal.
bool SealsFutureWrites() {
  static const bool known = [] {
    const FileDescriptor probe(CreateFile("rdma_transport_probe"));
    return probe.valid() && fcntl(probe.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0;
  }();
  return known;
}

}  // namespace

size_t TotalMemory() { return std::min(MeminfoBytes("MemTotal"), ControlGroupMemory().limit); }

size_t AvailableMemory() {
  return std::min(MeminfoBytes("MemAvailable"), ControlGroupMemory().available);
}

Status CreateMemoryFile(const char* name, size_t length, FileDescriptor* file) {
  // For a page of an unnamed file the kernel would kill a process rather than fail, so check first.
  const size_t available = AvailableMemory();
  const size_t reserve = std::min<size_t>(available / 16, size_t{256} << 20);
  if (length > available - reserve) {
    return Status(Code::kResourceExhausted,
                  "no memory for " + std::to_string(length) + " bytes of shared memory: " +
                      std::to_string(available) + " bytes are available to this process");
  }
  // Beyond this limit the kernel would send SIGXFSZ, which terminates the process by default.
  rlimit file_size;
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && length > file_size.rlim_cur) {
    return Status(Code::kResourceExhausted,
                  std::to_string(length) + " bytes of shared memory are above the limit on file " +
                      "sizes (ulimit -f): " + std::to_string(file_size.rlim_cur) + " bytes");
  }
  FileDescriptor fd(CreateFile(name));
  if (!fd.valid()) return StatusFromErrno(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(length)) != 0) {
    return StatusFromErrno(errno, "sizing " + std::to_string(length) + " bytes of shared memory");
  }
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(length)) != 0) {
    return StatusFromErrno(errno,
                           "allocating " + std::to_string(length) + " bytes of shared memory");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return StatusFromErrno(errno, "sealing shared memory");
  }
  *file = std::move(fd);
  return OkStatus();
}

Status SealAgainstNewWriters(int fd) {
  // Kernels before 5.1 do not support this seal. The peers' mappings are read-only anyway.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL) {
    return StatusFromErrno(errno, "sealing shared memory against writers");
  }
  return OkStatus();
}

Status CheckMemoryFile(int fd, size_t length, bool writable) {
  const int seals = fcntl(fd, F_GET_SEALS);
  // F_SEAL_FUTURE_WRITE also keeps the peer from punching holes.
  const int needed =
      F_SEAL_SHRINK | F_SEAL_GROW | (writable || !SealsFutureWrites() ? 0 : F_SEAL_FUTURE_WRITE);
  if (seals < 0 || (seals & needed) != needed) {
    return Status(Code::kPermissionDenied, "the peer sent shared memory that is not sealed");
  }
  // Huge pages can run out on first access.
  struct statfs system;
  if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return Status(Code::kPermissionDenied, "the peer sent memory of another kind than it said");
  }
  struct stat stat_buffer;
  if (fstat(fd, &stat_buffer) != 0) return StatusFromErrno(errno, "fstat of shared memory");
  if (stat_buffer.st_size < 0 || static_cast<uint64_t>(stat_buffer.st_size) != length) {
    return Status(Code::kInvalidArgument,
                  "the peer sent shared memory of another size than it said");
  }
  if (static_cast<uint64_t>(stat_buffer.st_blocks) * 512 < length) {
    return Status(Code::kInvalidArgument, "the peer sent shared memory whose pages are not there");
  }
  return OkStatus();
}

}  // namespace rdma_transport::fabric::host
