// Measures the bandwidth of reads and writes with one port and with two, over the fake libibverbs
// with ports of limited bandwidth. Rounds alternate, and medians are compared.
//
// usage: FAKE_IBVERBS='devices=fake_0,fake_1;bandwidth=100000000'
//        RDMA_TRANSPORT_LIBIBVERBS=.../libfake_ibverbs.so ports_benchmark
#include <cstdio>
#include <vector>

#include "pair.h"

namespace rdma_transport::benchmarks {
namespace {

constexpr int kRounds = 7;
constexpr uint64_t kLength = 16 << 20;

// Returns bytes per second.
double Move(Pair* pair, bool write) {
  const Side& a = pair->a;
  const fabric::RemoteSpan span = {pair->b.region->key(), 0, kLength};
  const int before = a.handler->transfers;
  const Nanos start = Now();
  Require(write ? a.channel->Write(a.region->address(), span, 1)
                : a.channel->Read(span, a.region->address(), 1));
  Require(a.channel->Flush());
  pair->PollUntil([&] { return a.handler->transfers > before; });
  return 1e9 * static_cast<double>(kLength) / static_cast<double>(Now() - start);
}

void Run(Settings settings) {
  settings.fabric = "verbs";
  settings.verbs.ports = 2;
  Pair two(settings, kLength);
  settings.verbs.devices = "=fake_0";
  Pair one(settings, kLength);
  for (const bool write : {true, false}) {
    std::vector<double> with_one;
    std::vector<double> with_two;
    for (int round = 0; round < kRounds; ++round) {
      with_one.push_back(Move(&one, write));
      with_two.push_back(Move(&two, write));
    }
    const double median_one = Quantile(with_one, 0.5);
    const double median_two = Quantile(with_two, 0.5);
    std::printf("%s: one port %.1f MB/s, two ports %.1f MB/s, ratio %.2f\n",
                write ? "write" : "read", median_one / 1e6, median_two / 1e6,
                median_two / median_one);
  }
}

}  // namespace
}  // namespace rdma_transport::benchmarks

int main() {
  rdma_transport::benchmarks::Run(rdma_transport::benchmarks::LoadedSettings());
  return 0;
}
