// Preloaded into a test, makes memory look as on a kernel with pages of 64 KiB, which some for
// aarch64 have: an address or an offset that is not a multiple of it is refused, every length is
// rounded up to it, and sysconf() says it. So code that assumes pages of 4 KiB fails, or overwrites
// its neighbor, here as there. Not shown is what lies behind the end of a file in its last page.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace {

constexpr uintptr_t kPage = uintptr_t{64} << 10;

bool Aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % kPage == 0; }

size_t Whole(size_t length) { return (length + kPage - 1) / kPage * kPage; }

int Refuse() {
  errno = EINVAL;
  return -1;
}

void* Map(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}

int Unmap(char* address, size_t length) {
  return length == 0 ? 0 : static_cast<int>(syscall(SYS_munmap, address, length));
}

}  // namespace

extern "C" {

void* mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
  const bool fixed = (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) != 0;
  if (static_cast<uintptr_t>(offset) % kPage != 0 || (fixed && !Aligned(address)) || length == 0) {
    Refuse();
    return MAP_FAILED;
  }
  const size_t whole = Whole(length);
  if (fixed) return Map(address, whole, protection, flags, fd, offset);
  void* const reserved =
      Map(nullptr, whole + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  char* const begin = static_cast<char*>(reserved);
  const size_t before =
      Whole(reinterpret_cast<uintptr_t>(begin)) - reinterpret_cast<uintptr_t>(begin);
  Unmap(begin, before);
  Unmap(begin + before + whole, kPage - before);
  void* const mapped = Map(begin + before, whole, protection, flags | MAP_FIXED, fd, offset);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    Unmap(begin + before, whole);
    errno = error;
  }
  return mapped;
}

void* mmap64(void* address, size_t length, int protection, int flags, int fd, off_t offset) noexcept
    __attribute__((alias("mmap")));

int munmap(void* address, size_t length) noexcept {
  if (!Aligned(address) || length == 0) return Refuse();
  return Unmap(static_cast<char*>(address), Whole(length));
}

int mprotect(void* address, size_t length, int protection) noexcept {
  if (!Aligned(address)) return Refuse();
  return static_cast<int>(syscall(SYS_mprotect, address, Whole(length), protection));
}

int madvise(void* address, size_t length, int advice) noexcept {
  if (!Aligned(address)) return Refuse();
  // Not rounded: behind the end of a file there is nothing to populate here.
  return static_cast<int>(syscall(SYS_madvise, address, length, advice));
}

long sysconf(int name) noexcept {
  if (name == _SC_PAGESIZE) return kPage;
  using Function = long (*)(int);
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, "sysconf"))(name);
}

int getpagesize() noexcept { return kPage; }

}  // extern "C"
