// Measures what each peer costs a device: time per turn and per notification, memory, descriptors
// and set-up. Two devices of this process have N channels between them, and two of the channels
// talk. The fabric is that of RDMA_TRANSPORT_FABRIC, by default shared memory.
//
// usage: peers_benchmark [PEERS...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "fabric/registry.h"
#include "pair.h"

namespace rdma_transport::benchmarks {
namespace {

constexpr int kRounds = 2000;
constexpr size_t kActive = 2;
constexpr Nanos kSettling = 300 * kMillisecond;

struct Host {
  explicit Host(const Settings& settings) { Require(fabric::OpenDevice(settings, &device)); }

  std::unique_ptr<fabric::Device> device;
  std::vector<std::shared_ptr<Handler>> handlers;
  std::vector<std::shared_ptr<fabric::Channel>> channels;

  void Open() {
    handlers.push_back(std::make_shared<Handler>());
    channels.emplace_back();
    Require(device->Open(handlers.back(), &channels.back()));
  }
};

void Connect(Host* a, Host* b) {
  a->Open();
  b->Open();
  Require(b->channels.back()->Connect(a->channels.back()->Address(), fabric::Role::kPassive));
  Require(a->channels.back()->Connect(b->channels.back()->Address(), fabric::Role::kActive));
  while (!a->handlers.back()->connected || !b->handlers.back()->connected) {
    a->device->Poll();
    b->device->Poll();
  }
}

struct Held {
  double descriptors = 0;
  double ring_bytes = 0;
};

// Of rings and other memory of the transport: that which both devices made.
Held HeldNow() {
  Held held;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (target.find("rdma_transport") != std::string::npos) ++held.descriptors;
  }
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  while (std::getline(maps, line)) {
    if (line.find("/memfd:") != std::string::npos) {
      ours = line.find("rdma_transport") != std::string::npos;
    } else if (ours && line.rfind("Size:", 0) == 0) {
      held.ring_bytes += std::stod(line.substr(5)) * 1024;
      ours = false;
    }
  }
  return held;
}

template <typename Action>
double Timed(Action action) {
  const Nanos start = Now();
  action();
  return static_cast<double>(Now() - start);
}

// Notifications take turns over the channels that talk, and both ends are polled by this thread.
void Measure(const Settings& settings, size_t peers) {
  const Held before = HeldNow();
  Host a(settings);
  Host b(settings);
  const Nanos start = Now();
  for (size_t i = 0; i < peers; ++i) Connect(&a, &b);
  const double setup = static_cast<double>(Now() - start) / static_cast<double>(peers);
  const Nanos settled = Now() + kSettling;
  while (Now() < settled) {
    a.device->Poll();
    b.device->Poll();
  }
  std::vector<double> turn;
  std::vector<double> notification;
  std::vector<double> arm;
  const char word = 'x';
  const iovec part = {const_cast<char*>(&word), 1};
  for (int i = 0; i < kRounds; ++i) {
    const size_t which = static_cast<size_t>(i) % std::min(kActive, peers);
    const int seen = a.handlers[which]->notes;
    Require(b.channels[which]->Notify(&part, 1, fabric::Urgency::kWake));
    while (a.handlers[which]->notes == seen) {
      const double took = Timed([&] { a.device->Poll(); });
      (a.handlers[which]->notes == seen ? turn : notification).push_back(took);
      b.device->Poll();
    }
    turn.push_back(Timed([&] { a.device->Poll(); }));
    arm.push_back(Timed([&] { a.device->ArmNotification(); }));
    a.device->Poll();
  }
  const Held after = HeldNow();
  const double ends = 2 * static_cast<double>(peers);
  std::printf("| %zu | %.0f ns | %.0f ns | %.0f ns | %.0f KiB | %.1f | %.0f us |\n", peers,
              Quantile(turn, 0.5), Quantile(notification, 0.5), Quantile(arm, 0.5),
              (after.ring_bytes - before.ring_bytes) / ends / 1024,
              (after.descriptors - before.descriptors) / ends, setup / 1000);
  std::fflush(stdout);
}

}  // namespace
}  // namespace rdma_transport::benchmarks

int main(int argc, char** argv) {
  using namespace rdma_transport;
  Settings settings = benchmarks::LoadedSettings();
  if (settings.fabric == kAutoFabric) settings.fabric = "shm";
  std::printf("%s; per channel end:\n", settings.fabric.c_str());
  std::printf(
      "| channels | empty turn | turn with a notification | arm | mapped | memory files | set-up "
      "|\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  std::vector<size_t> counts;
  for (int i = 1; i < argc; ++i) counts.push_back(std::strtoul(argv[i], nullptr, 10));
  if (counts.empty()) counts = {2, 32, 128, 512};
  for (const size_t peers : counts) benchmarks::Measure(settings, peers);
}
