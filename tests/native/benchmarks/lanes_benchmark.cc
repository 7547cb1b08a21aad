// Measures how long a small tensor takes beside large ones: a write of 4 KiB and the notification
// that follows it, alone, beside writes of 16 MiB that it may overtake, and beside such that it
// must not. With several channels, each has large writes, and all share the port. Their senders are
// several devices, as if on several hosts, or one. Also measures the bandwidth of the large writes.
// Over the fake libibverbs with ports of limited bandwidth, or over another fabric.
//
// usage: FAKE_IBVERBS='bandwidth=1000000000;active_width=1;active_speed=8'  # 10 Gb/s
//        RDMA_TRANSPORT_LIBIBVERBS=.../libfake_ibverbs.so lanes_benchmark [CHANNELS [one]]
//        RDMA_TRANSPORT_FABRIC=libfabric RDMA_TRANSPORT_LIBFABRIC_INTERFACE=lo lanes_benchmark
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
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
  Sender(const Settings& settings, std::shared_ptr<fabric::Device> device)
      : pair_(settings, 2 * kLarge, std::move(device)) {}
  const std::shared_ptr<fabric::Device>& device() const { return pair_.a.device; }

  int Poll() { return pair_.a.device->Poll() + pair_.b.device->Poll(); }
  void BeginSmall(bool overtakes) {
    const uint64_t cookie = ++cookies_;
    notes_ = pair_.b.handler->notes;
    Write(0, kSmall, cookie);
    Notify(overtakes ? fabric::After::Write(cookie) : fabric::After::Everything());
  }
  // Whether the peer was notified of the small write.
  bool SmallArrived() const { return pair_.b.handler->notes > notes_; }
  void KeepLargeUnderWay() {
    while (large_ - LargeEnded() < kLargeUnderWay) {
      Write(kLarge, kLarge, kLargeCookie + static_cast<uint64_t>(++large_));
    }
    Require(pair_.a.channel->Flush());
  }
  // Bytes that have begun to leave; posted by the device.
  uint64_t Written() const { return pair_.a.device->Ports().front().written_bytes; }
  bool AllEnded() const {
    return pair_.a.handler->transfers == large_ + static_cast<int>(cookies_);
  }

 private:
  int LargeEnded() const { return pair_.a.handler->transfers - static_cast<int>(cookies_); }
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
  int notes_ = 0;
  int large_ = 0;
};

struct Case {
  const char* name;
  bool large;
  bool overtakes;
  int rounds;
};

class Benchmark {
 public:
  Benchmark(const Settings& settings, int channels, bool one_device) {
    for (int i = 0; i < channels; ++i) {
      const bool first = i == 0 || !one_device;
      senders_.push_back(
          std::make_unique<Sender>(settings, first ? nullptr : senders_.front()->device()));
    }
    written_by_all_ = one_device;
  }

  void Run(const Case& one) {
    std::vector<double> times;
    const Nanos begun = Now();
    const uint64_t before = LargeBytes();
    for (int round = 0; round < one.rounds; ++round) {
      if (one.large) KeepLargeUnderWay();
      const Nanos start = Now();
      senders_.front()->BeginSmall(one.overtakes);
      while (!senders_.front()->SmallArrived()) Poll();
      times.push_back(static_cast<double>(Now() - start) / 1e3);
    }
    const double seconds = static_cast<double>(Now() - begun) / 1e9;
    const double rate = static_cast<double>(LargeBytes() - before) / seconds;
    for (const auto& sender : senders_) {
      while (!sender->AllEnded()) Poll();
    }
    std::printf("%s: median %.0f us, p99 %.0f us", one.name, Quantile(times, 0.5),
                Quantile(times, 0.99));
    if (one.large) std::printf(", large writes %.0f MB/s", rate / 1e6);
    std::printf("\n");
  }

 private:
  void KeepLargeUnderWay() {
    for (const auto& sender : senders_) sender->KeepLargeUnderWay();
  }
  void Poll() {
    int events = 0;
    for (const auto& sender : senders_) events += sender->Poll();
    if (events == 0) usleep(50);
  }
  // Written by the process, with those that are under way in part.
  uint64_t LargeBytes() const {
    uint64_t bytes = 0;
    for (const auto& sender : senders_) {
      bytes += sender->Written();
      if (written_by_all_) break;
    }
    return bytes;
  }

  std::vector<std::unique_ptr<Sender>> senders_;
  bool written_by_all_ = false;  // each of them reports the bytes of all
};

}  // namespace
}  // namespace rdma_transport::benchmarks

int main(int count, char** arguments) {
  using rdma_transport::benchmarks::Case;
  rdma_transport::Settings settings = rdma_transport::benchmarks::LoadedSettings();
  if (settings.fabric == rdma_transport::kAutoFabric) settings.fabric = "verbs";
  const int channels = count > 1 ? std::atoi(arguments[1]) : 1;
  rdma_transport::benchmarks::Benchmark benchmark(settings, channels, count > 2);
  for (const Case& one :
       {Case{"alone", false, true, rdma_transport::benchmarks::kRounds},
        Case{"beside 16 MiB", true, true, rdma_transport::benchmarks::kRounds},
        Case{"behind 16 MiB", true, false, rdma_transport::benchmarks::kRounds / 10}}) {
    benchmark.Run(one);
  }
  return 0;
}
