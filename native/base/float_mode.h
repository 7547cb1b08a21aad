// How the processor treats subnormal numbers on this thread.
#pragma once

#include <cstdint>

namespace rdma_transport {

// While it exists, the thread takes subnormal operands and results for zeros, or keeps them. Other
// processors than x86-64 and aarch64 stay as they are.
class FloatMode {
 public:
  explicit FloatMode(bool flush) : before_(Get()) {
    const Word wanted = flush ? before_ | kFlush : before_ & ~kFlush;
    if (wanted != before_) Set(wanted);
    changed_ = wanted != before_;
  }
  ~FloatMode() {
    if (changed_) Set(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kFlush = 0x8040;  // FTZ and DAZ of MXCSR
  static Word Get() { return __builtin_ia32_stmxcsr(); }
  static void Set(Word word) { __builtin_ia32_ldmxcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kFlush = Word{1} << 24;  // FZ of FPCR
  static Word Get() {
    Word word;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void Set(Word word) { __asm__ __volatile__("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = uint32_t;
  static constexpr Word kFlush = 0;
  static Word Get() { return 0; }
  static void Set(Word) {}
#endif

  const Word before_;
  bool changed_ = false;
};

}  // namespace rdma_transport
