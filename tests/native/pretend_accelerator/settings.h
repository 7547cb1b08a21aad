// The settings and counters that control.h describes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace pretend_accelerator {

struct Settings {
  std::atomic<int64_t> devices{1};
  std::atomic<int64_t> delay_us{0};
  std::atomic<int64_t> copy_us{0};
  std::atomic<int64_t> mib_us{0};
  std::atomic<int64_t> in_order{0};
  std::atomic<int64_t> fail_alloc{0};
  std::atomic<int64_t> fail_dtoh{0};
  std::atomic<int64_t> fail_htod{0};
  std::atomic<int64_t> fail_stream{0};

  bool Set(const std::string& pairs);
};

struct Counters {
  std::atomic<uint64_t> dtoh_copies{0};
  std::atomic<uint64_t> dtoh_bytes{0};
  std::atomic<uint64_t> htod_copies{0};
  std::atomic<uint64_t> htod_bytes{0};
  std::atomic<uint64_t> dtod_copies{0};
  std::atomic<uint64_t> dtod_bytes{0};
  std::atomic<uint64_t> kernels{0};
  std::atomic<uint64_t> allocated_bytes{0};
  std::atomic<uint64_t> pending{0};
};

// Both live as long as the process.
Settings& settings();
Counters& counters();

// Counts a fault's setting down, and returns whether it strikes now. It then strikes again each
// time if it is `lasting`, else never.
bool Strikes(std::atomic<int64_t>* fault, bool lasting);

}  // namespace pretend_accelerator
