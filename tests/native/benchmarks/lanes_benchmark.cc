// Measures how long a small tensor takes to the same peer beside large ones: a write of 4 KiB and
// the notification that follows it, alone, beside writes of 16 MiB that it may overtake, and beside
// such that it must not. Over the fake libibverbs with ports of limited bandwidth.
//
// usage: FAKE_IBVERBS='bandwidth=1000000000;active_width=1;active_speed=8'  # 10 Gb/s
//        RDMA_TRANSPORT_LIBIBVERBS=.../libfake_ibverbs.so lanes_benchmark
#include <cstdio>
#include <vector>

#include "pair.h"

namespace rdma_transport::benchmarks {
namespace {

constexpr int kRounds = 200;
constexpr uint64_t kSmall = 4 << 10;
constexpr uint64_t kLarge = 16 << 20;
constexpr uint64_t kLargeCookie = uint64_t{1} << 32;
constexpr int kLargeUnderWay = 2;

class Sender {
 public:
  explicit Sender(const Settings& settings) : pair_(settings, 2 * kLarge) {}

  // Returns microseconds until the peer is notified of the write.
  double SendSmall(bool overtakes) {
    const uint64_t cookie = ++cookies_;
    const int before = pair_.b.handler->notes;
    const Nanos start = Now();
    Write(0, kSmall, cookie);
    Notify(overtakes ? fabric::After::Write(cookie) : fabric::After::Everything());
    pair_.PollUntil([&] { return pair_.b.handler->notes > before; });
    return static_cast<double>(Now() - start) / 1e3;
  }
  void KeepLargeUnderWay() {
    const int small = static_cast<int>(cookies_);
    while (large_ - (pair_.a.handler->transfers - small) < kLargeUnderWay) {
      Write(kLarge, kLarge, kLargeCookie + static_cast<uint64_t>(++large_));
    }
    Require(pair_.a.channel->Flush());
  }
  void WaitForAll() {
    pair_.PollUntil(
        [&] { return pair_.a.handler->transfers == large_ + static_cast<int>(cookies_); });
  }

 private:
  void Write(uint64_t offset, uint64_t length, uint64_t cookie) {
    Require(pair_.a.channel->Write(pair_.a.region->address() + offset,
                                   {pair_.b.region->key(), offset, length}, cookie));
  }
  void Notify(fabric::After after) {
    char word = 0;
    const iovec part = {&word, 1};
    Require(pair_.a.channel->Notify(&part, 1, fabric::Urgency::kWake, nullptr, after));
  }

  Pair pair_;
  uint64_t cookies_ = 0;
  int large_ = 0;
};

void Run(Settings settings) {
  settings.fabric = "verbs";
  Sender sender(settings);
  struct Case {
    const char* name;
    bool large;
    bool overtakes;
    int rounds;
  };
  for (const Case& one :
       {Case{"alone", false, true, kRounds}, Case{"beside 16 MiB", true, true, kRounds},
        Case{"behind 16 MiB", true, false, kRounds / 10}}) {
    std::vector<double> times;
    for (int round = 0; round < one.rounds; ++round) {
      if (one.large) sender.KeepLargeUnderWay();
      times.push_back(sender.SendSmall(one.overtakes));
    }
    sender.WaitForAll();
    std::printf("%s: median %.0f us, p99 %.0f us\n", one.name, Quantile(times, 0.5),
                Quantile(times, 0.99));
  }
}

}  // namespace
}  // namespace rdma_transport::benchmarks

int main() {
  rdma_transport::benchmarks::Run(rdma_transport::benchmarks::LoadedSettings());
  return 0;
}
