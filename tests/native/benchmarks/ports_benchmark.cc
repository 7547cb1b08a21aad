// Measures the bandwidth of reads and writes with one port and with two, over the fake libibverbs
// with ports of limited bandwidth. Rounds alternate, and medians are compared.
//
// usage: FAKE_IBVERBS='devices=fake_0,fake_1;bandwidth=100000000'
//        RDMA_TRANSPORT_LIBIBVERBS=.../libfake_ibverbs.so ports_benchmark
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/registry.h"

namespace rdma_transport {
namespace {

constexpr int kRounds = 7;
constexpr uint64_t kLength = 16 << 20;
constexpr Nanos kSettling = 300 * kMillisecond;

void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

struct Handler : fabric::ChannelHandler {
  void OnConnected() override { connected = true; }
  void OnNotify(const char*, size_t) override { ++notes; }
  void OnTransfer(uint64_t, const Status& status) override {
    Require(status);
    ++transfers;
  }
  void OnClosed(const Status& status) override { Require(status); }

  bool connected = false;
  int notes = 0;
  int transfers = 0;
};

struct Side {
  explicit Side(const Settings& settings) {
    Require(fabric::OpenDevice(settings, &device));
    Require(device->Open(handler, &channel));
    Require(device->Allocate(kLength, fabric::Access::kRemoteReadWrite, nullptr, &region));
  }

  std::unique_ptr<fabric::Device> device;
  std::unique_ptr<fabric::Region> region;
  std::shared_ptr<Handler> handler = std::make_shared<Handler>();
  std::shared_ptr<fabric::Channel> channel;
};

class Pair {
 public:
  explicit Pair(const Settings& settings) : a_(settings), b_(settings) {
    Require(b_.channel->Connect(a_.channel->Address(), fabric::Role::kPassive));
    Require(a_.channel->Connect(b_.channel->Address(), fabric::Role::kActive));
    PollUntil([&] { return a_.handler->connected && b_.handler->connected; });
    Require(b_.channel->Share(b_.region->key()));
    char word = 0;
    const iovec part = {&word, 1};
    Require(b_.channel->Notify(&part, 1, fabric::Urgency::kWake));
    PollUntil([&] { return a_.handler->notes == 1; });
    const Nanos settled = Now() + kSettling;  // further ports are tested before they are used
    PollUntil([&] { return Now() > settled; });
  }

  // Returns bytes per second.
  double Move(bool write) {
    const fabric::RemoteSpan span = {b_.region->key(), 0, kLength};
    const int before = a_.handler->transfers;
    const Nanos start = Now();
    Require(write ? a_.channel->Write(a_.region->address(), span, 1)
                  : a_.channel->Read(span, a_.region->address(), 1));
    Require(a_.channel->Flush());
    PollUntil([&] { return a_.handler->transfers > before; });
    return 1e9 * static_cast<double>(kLength) / static_cast<double>(Now() - start);
  }

 private:
  template <typename Condition>
  void PollUntil(Condition condition) {
    while (!condition()) {
      if (a_.device->Poll() + b_.device->Poll() == 0) usleep(50);
    }
  }

  Side a_;
  Side b_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Run(Settings settings) {
  settings.fabric = "verbs";
  Pair two(settings);
  settings.verbs.devices = "=fake_0";
  Pair one(settings);
  for (const bool write : {true, false}) {
    std::vector<double> with_one;
    std::vector<double> with_two;
    for (int round = 0; round < kRounds; ++round) {
      with_one.push_back(one.Move(write));
      with_two.push_back(two.Move(write));
    }
    std::printf("%s: one port %.1f MB/s, two ports %.1f MB/s, ratio %.2f\n",
                write ? "write" : "read", Median(with_one) / 1e6, Median(with_two) / 1e6,
                Median(with_two) / Median(with_one));
  }
}

}  // namespace
}  // namespace rdma_transport

int main() {
  rdma_transport::Settings settings;
  std::vector<std::string> warnings;
  rdma_transport::Require(rdma_transport::LoadSettings(environ, &settings, &warnings));
  rdma_transport::Run(settings);
  return 0;
}
