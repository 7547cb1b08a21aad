// Protection domains, memory regions, and their keys.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine.h"
#include "fake.h"

#undef ibv_reg_mr

namespace fake_ibverbs {
namespace {

constexpr unsigned int kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                      IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;

// Whether every page is mapped: a card pins them, and fails with EFAULT where there are none.
bool Mapped(const void* address, size_t length) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + length;
  uintptr_t at = reinterpret_cast<uintptr_t>(address) / page * page;
  std::vector<unsigned char> resident(4096);
  while (at < end) {
    const size_t step = std::min<size_t>(end - at, resident.size() * page);
    if (mincore(reinterpret_cast<void*>(at), step, resident.data()) != 0) return false;
    at += step;
  }
  return true;
}

// Whether the processor can read the memory: a card pins no other pages.
bool Readable(const void* address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return true;
  // The kernel itself looks at the memory, as a card would: nobody needs to wait for that.
  const bool readable = syscall(SYS_write, ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

// Returns a descriptor of this process for the file with that inode, or -1.
int DescriptorOf(ino_t inode) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::atoi(entry.path().filename().c_str());
    struct stat about = {};
    if (fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_ino == inode) return file;
  }
  return -1;
}

// Maps once more the memory file that lies at `address`, as a module of the kernel finds the memory
// of an accelerator. Returns null if none lies there, or if this process has no descriptor of it.
char* MapAgain(const void* address, size_t length) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long start = 0;
    unsigned long end = 0;
    unsigned long offset = 0;
    unsigned long inode = 0;
    const char* const format = "%lx-%lx %*s %lx %*s %lu";
    if (std::sscanf(line.c_str(), format, &start, &end, &offset, &inode) != 4) continue;
    if (wanted < start || wanted >= end || length > end - wanted) continue;
    const int file = DescriptorOf(inode);
    if (file < 0) return nullptr;
    void* mapped = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                        static_cast<off_t>(offset + (wanted - start)));
    return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }
  return nullptr;
}

// 0, or the error that every kind of registration has for these.
int Refusal(const Fake& fake, const DeviceConfig& config, size_t length, uint64_t iova,
            unsigned int access) {
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return EOPNOTSUPP;
  const bool remote_changes = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  if ((access & ~kKnownAccess) != 0 || length == 0 || iova + length < iova ||
      (remote_changes && (access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
    return EINVAL;
  }
  const uint64_t left =
      fake.config.memlock - std::min(fake.config.memlock, fake.stats.registered_bytes);
  return fake.stats.mrs >= static_cast<uint64_t>(config.max_mr) || length > left ? ENOMEM : 0;
}

Mr* Add(Fake* fake, ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned int access) {
  auto* mr = new Mr();
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->bytes = static_cast<char*>(address);
  mr->length = length;
  mr->iova = iova;
  mr->access = access;
  mr->lkey = fake->NewKey();
  fake->by_lkey[mr->lkey] = mr;
  mr->rkey = fake->NewKey();
  fake->by_rkey[mr->rkey] = mr;
  ++static_cast<Pd*>(pd)->users;
  ++fake->stats.mrs;
  ++fake->stats.registrations;
  fake->stats.registered_bytes += length;
  return mr;
}

ibv_mr* Register(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned int access) {
  Call call("reg_mr", pd->context);
  if (call.error != 0) return NullWith<ibv_mr>(call.error);
  Fake& fake = call.fake;
  const DeviceConfig& config = fake.ConfigOf(pd->context);
  const auto start = reinterpret_cast<uintptr_t>(address);
  const int refusal = Refusal(fake, config, length, iova, access);
  if (refusal == EOPNOTSUPP) return NullWith<ibv_mr>(refusal);
  if (start + length < start ||
      (iova ^ start) % static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) != 0 ||
      (config.same_iova && iova != start)) {
    return NullWith<ibv_mr>(EINVAL);
  }
  if (refusal != 0) return NullWith<ibv_mr>(refusal);
  if (!Mapped(address, length)) return NullWith<ibv_mr>(EFAULT);
  if (Readable(address)) return Add(&fake, pd, address, length, iova, access);
  char* const bytes = config.peer_memory ? MapAgain(address, length) : nullptr;
  if (bytes == nullptr) return NullWith<ibv_mr>(EFAULT);
  Mr* mr = Add(&fake, pd, address, length, iova, access);
  mr->bytes = bytes;
  mr->mapped = true;
  return mr;
}

}  // namespace

char* FindMemory(const std::unordered_map<uint32_t, Mr*>& keys, uint32_t key, const ibv_pd* pd,
                 uint64_t address, uint64_t length, unsigned int access) {
  const auto it = keys.find(key);
  if (it == keys.end()) return nullptr;
  const Mr& mr = *it->second;
  if (mr.pd != pd || (mr.access & access) != access || address < mr.iova || length > mr.length ||
      address - mr.iova > mr.length - length) {
    return nullptr;
  }
  return mr.bytes + (address - mr.iova);
}

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  Call call("alloc_pd", context);
  if (call.error != 0) return NullWith<ibv_pd>(call.error);
  auto* pd = new Pd();
  pd->context = context;
  ++ContextOf(context)->users;
  ++call.fake.stats.pds;
  return pd;
}

int ibv_dealloc_pd(ibv_pd* shown) {
  Call call("dealloc_pd", shown->context, Call::Kind::kEnd);
  if (call.error != 0) return call.error;
  auto* pd = static_cast<Pd*>(shown);
  if (pd->users != 0) return EBUSY;
  --ContextOf(pd->context)->users;
  --call.fake.stats.pds;
  delete pd;
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return Register(pd, address, length, reinterpret_cast<uintptr_t>(address),
                  static_cast<unsigned int>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                         unsigned int access) {
  return Register(pd, address, length, iova, access);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int file,
                          int access) {
  Call call("reg_dmabuf_mr", pd->context);
  if (call.error != 0) return NullWith<ibv_mr>(call.error);
  Fake& fake = call.fake;
  const auto allowed = static_cast<unsigned int>(access);
  const int refusal = Refusal(fake, fake.ConfigOf(pd->context), length, iova, allowed);
  if (refusal != 0) return NullWith<ibv_mr>(refusal);
  struct stat about = {};
  if (fstat(file, &about) != 0) return NullWith<ibv_mr>(EBADF);
  if ((iova ^ offset) % static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) != 0 ||
      offset + length > static_cast<uint64_t>(about.st_size)) {
    return NullWith<ibv_mr>(EINVAL);
  }
  void* mapped =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return NullWith<ibv_mr>(errno);
  Mr* mr = Add(&fake, pd, reinterpret_cast<void*>(offset), length, iova, allowed);
  mr->bytes = static_cast<char*>(mapped);
  mr->mapped = true;
  return mr;
}

int ibv_dereg_mr(ibv_mr* shown) {
  Call call("dereg_mr", shown->context, Call::Kind::kEnd);
  if (call.error != 0) return call.error;
  auto* mr = static_cast<Mr*>(shown);
  // What the card has yet to write, it writes before the pages are let go.
  for (const auto& [number, qp] : call.fake.qps) PlaceAll(qp);
  call.fake.by_lkey.erase(mr->lkey);
  call.fake.by_rkey.erase(mr->rkey);
  call.fake.stats.registered_bytes -= mr->length;
  --call.fake.stats.mrs;
  --static_cast<Pd*>(mr->pd)->users;
  if (mr->mapped) munmap(mr->bytes, mr->length);
  delete mr;
  return 0;
}

}  // extern "C"

}  // namespace fake_ibverbs
