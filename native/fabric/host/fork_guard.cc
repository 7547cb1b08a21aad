#include "fabric/host/fork_guard.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

namespace rdma_transport::fabric::host {
namespace {

struct GuardedMemory {
  size_t length;
  int fd;
};

struct Guarded {
  std::mutex mu;
  std::map<void*, GuardedMemory> memory;
  std::set<int> descriptors;
  std::atomic<int> generation{0};
};

Guarded& Guard();

void BeforeFork() { Guard().mu.lock(); }

void AfterForkInParent() { Guard().mu.unlock(); }

void AfterForkInChild() {
  Guarded& guard = Guard();
  guard.generation.fetch_add(1);
  for (const auto& [address, memory] : guard.memory) {
    mmap(address, memory.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, memory.fd, 0);
  }
  for (int fd : guard.descriptors) close(fd);
  guard.descriptors.clear();
  guard.mu.unlock();
}

Guarded& Guard() {
  static Guarded* guard = [] {
    auto* made = new Guarded;
    pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild);
    return made;
  }();
  return *guard;
}

}  // namespace

void GuardMemory(void* address, size_t length, int fd) {
  Guarded& guard = Guard();
  std::lock_guard<std::mutex> lock(guard.mu);
  guard.memory[address] = {length, fd};
}

void UnguardMemory(void* address) {
  Guarded& guard = Guard();
  std::lock_guard<std::mutex> lock(guard.mu);
  guard.memory.erase(address);
}

void GuardDescriptor(int fd) {
  Guarded& guard = Guard();
  std::lock_guard<std::mutex> lock(guard.mu);
  guard.descriptors.insert(fd);
}

void UnguardDescriptor(int fd) {
  Guarded& guard = Guard();
  std::lock_guard<std::mutex> lock(guard.mu);
  guard.descriptors.erase(fd);
}

int ForkGeneration() { return Guard().generation.load(std::memory_order_relaxed); }

}  // namespace rdma_transport::fabric::host
