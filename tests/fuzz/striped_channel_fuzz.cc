// What a hostile peer can send on the rails of a striped channel: its address, and records of all
// kinds in any order, while rails fail, are offered and return, and this side reads and writes.

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "fabric/striped/address.h"
#include "fabric/striped/channel.h"
#include "fabric/striped/wire.h"
#include "input.h"
#include "scripted_fabric.h"

namespace rdma_transport::fabric::striped {
namespace {

using fuzz::Input;
using fuzz::Manners;
using fuzz::ScriptedChannel;
using fuzz::ScriptedDevice;

constexpr size_t kMaxOperations = 200;
constexpr uint64_t kKey = 5;
constexpr uint64_t kLength = 512 << 10;

void Require(bool condition) {
  if (!condition) std::abort();
}

class User final : public ChannelHandler {
 public:
  void OnConnected() override { Require(!std::exchange(connected, true) && !closed); }
  void OnNotify(const char* data, size_t length) override {
    Require(connected && !closed);
    volatile char seen = 0;
    for (size_t i = 0; i < length; ++i) seen = seen ^ data[i];
  }
  void OnDelivered(uint64_t number) override {
    Require(!closed && number > delivered && number <= notified);
    delivered = number;
  }
  void OnTransfer(uint64_t cookie, const Status&) override {
    Require(!closed && under_way.erase(cookie) == 1);
  }
  void OnClosed(const Status& status) override {
    Require(!std::exchange(closed, true));
    released = status.code() == Code::kUnavailable;
  }
  void OnReleased() override { Require(closed && !std::exchange(released, true)); }

  bool connected = false;
  bool closed = false;
  bool released = false;
  uint64_t notified = 0;
  uint64_t delivered = 0;
  std::map<uint64_t, bool> under_way;  // by cookie
};

// All in one thread.
class World final : private ChannelDevice {
 public:
  explicit World(Input* input) : input_(input), local_(kLength, 'l') {
    const size_t rails = 1 + input->Below(3);
    for (size_t i = 0; i < rails; ++i) {
      auto device = std::make_unique<ScriptedDevice>(Manners{/*maps=*/false, /*refuses=*/false});
      device->on_open = [this, device = device.get()](ScriptedChannel* channel) {
        channel->AddRegion(kKey, kLength);
        opened_.push_back(device->channel());
      };
      rails_.push_back(std::move(device));
    }
    channel_ =
        std::make_shared<StripedChannel>(static_cast<ChannelDevice*>(this), std::weak_ptr(user_));
    Require(channel_->Open().ok());
  }

  void Run() {
    ChannelAddress peer;
    for (size_t i = input_->Below(4) + 1; i > 0; --i) peer.rails.push_back({"", "", "there"});
    const std::string address = input_->Flag() ? peer.Encode() : input_->Bytes(64);
    const Role role = input_->Flag() ? Role::kActive : Role::kPassive;
    if (!channel_->Connect(address, role, Terms()).ok()) return;
    for (size_t i = 0; i < kMaxOperations && !input_->empty() && !user_->closed; ++i) Operate();
    // Nothing is left of any rail.
    channel_->Close(Status(Code::kCancelled, "over"));
    for (int turn = 0; turn < 100 && !user_->closed; ++turn) {
      CallSlowOnes();
      for (size_t i = 0; i < opened_.size(); ++i) {
        opened_[i]->FinishClose(Status(Code::kUnavailable, "over"));
      }
      channel_->Service(now_ += kSecond);
    }
    Require(user_->closed);
    CallSlowOnes();
  }

 private:
  // ChannelDevice:
  const std::string& name() const override { return name_; }
  const std::vector<std::unique_ptr<Device>>& rails() const override { return rails_; }
  std::vector<std::pair<Device*, bool>> ordered_rails() const override {
    std::vector<std::pair<Device*, bool>> ordered;
    for (const auto& rail : rails_) ordered.emplace_back(rail.get(), true);
    return ordered;
  }
  void NoteFailure(const Device*) override {}
  size_t most_rails() const override { return kMaxRails; }
  Nanos peer_timeout() const override { return kSecond; }
  std::atomic<int>* lanes_of_writes() override { return &lanes_of_writes_; }
  std::atomic<int>* lanes_of_reads() override { return &lanes_of_reads_; }
  void Attend(std::weak_ptr<StripedChannel>) override {}
  void CallSlowly(std::function<void()> call) override { slow_.push_back(std::move(call)); }

  void CallSlowOnes() {
    for (const auto& call : std::exchange(slow_, {})) call();
  }

  void Operate() {
    // One of the last ones.
    const size_t at = input_->Below(8) % opened_.size();
    const std::shared_ptr<ScriptedChannel> rail = opened_[opened_.size() - 1 - at];
    const auto end = std::static_pointer_cast<RailEnd>(rail->handler());
    switch (input_->Below(12)) {
      case 0:
        return Greet(end.get());
      case 1:
        if (end != nullptr && rail->notified() > 0) end->OnDelivered(rail->notified());
        return;
      case 2:
        rail->EndTransfer(input_->Flag() ? OkStatus() : Status(Code::kUnavailable, "broken"));
        return;
      case 3:
        return Transfer();
      case 4:
        return Notify();
      case 5:
        return rail->FinishClose(
            Status(input_->Flag() ? Code::kUnavailable : Code::kAborted, "broken"));
      case 6:
        return CallSlowOnes();
      case 7:
        return channel_->Service(now_ +=
                                 static_cast<Nanos>(input_->Below(256)) * 10 * kMillisecond);
      default:
        if (end != nullptr && !rail->closed()) Record(end.get());
    }
  }

  void Greet(RailEnd* end) {
    if (end == nullptr) return;
    RecordHeader hello;
    hello.kind = RecordKind::kHello;
    hello.number = end->rail;
    end->OnNotify(reinterpret_cast<const char*>(&hello), sizeof(hello));
  }

  // Often one that may be right.
  void Record(RailEnd* end) {
    RecordHeader header;
    header.kind = static_cast<RecordKind>(input_->Below(12));
    const bool wrong = input_->Below(16) == 0;
    header.number = wrong ? input_->Number() : ++numbered_;
    header.back = static_cast<uint32_t>(input_->Below(3));
    header.waits = static_cast<uint8_t>(input_->Below(8) == 0 ? input_->Below(5) : 0);
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    if (IsControl(header.kind)) {
      RailRecord about;
      about.rail = static_cast<uint32_t>(input_->Number());
      about.slot = static_cast<uint32_t>(input_->Below(4));
      about.received = input_->Number();
      bytes.append(reinterpret_cast<const char*>(&about), sizeof(about));
    }
    bytes += input_->Bytes(input_->Below(32));
    for (int i = 0; i < header.waits; ++i) {
      const Wait wait = {static_cast<uint32_t>(input_->Below(6)), 0, input_->Number()};
      bytes.append(reinterpret_cast<const char*>(&wait), sizeof(wait));
    }
    // A buffer of exactly that size shows what is read beyond it.
    const auto exact = std::make_unique<char[]>(bytes.size());
    std::memcpy(exact.get(), bytes.data(), bytes.size());
    end->OnNotify(exact.get(), bytes.size());
  }

  void Transfer() {
    const uint64_t length = input_->Flag() ? kLength / 2 : 1 + input_->Below(200);
    const RemoteSpan span = {kKey, input_->Below(200) * 64, length};
    const uint64_t cookie = ++last_cookie_;
    user_->under_way[cookie] = true;
    const bool write = input_->Flag();
    const Status begun = write ? channel_->Write(local_.data(), span, cookie)
                               : channel_->Read(span, local_.data(), cookie);
    if (!begun.ok()) user_->under_way.erase(cookie);
  }

  void Notify() {
    std::string text = input_->Bytes(input_->Below(16));
    const iovec part = {text.data(), text.size()};
    const size_t kind = input_->Below(3);
    const After after = kind == 0   ? After::Everything()
                        : kind == 1 ? After::Nothing()
                                    : After::Write(last_cookie_);
    if (channel_->Notify(&part, 1, Urgency::kWake, nullptr, after).ok()) ++user_->notified;
  }

  Input* const input_;
  std::string local_;
  const std::string name_ = "striped";
  std::atomic<int> lanes_of_writes_{0};
  std::atomic<int> lanes_of_reads_{0};
  std::vector<std::unique_ptr<Device>> rails_;
  std::vector<std::shared_ptr<ScriptedChannel>> opened_;
  std::vector<std::function<void()>> slow_;
  const std::shared_ptr<User> user_ = std::make_shared<User>();
  std::shared_ptr<StripedChannel> channel_;
  Nanos now_ = Now();
  uint64_t numbered_ = 0;
  uint64_t last_cookie_ = 0;
};

// Both ends choose the same rails.
void MatchBoth(Input* input) {
  ChannelAddress ends[2];
  for (ChannelAddress& end : ends) {
    end.most_rails = 1 + input->Below(kMaxRails);
    for (size_t i = 1 + input->Below(kMaxRails); i > 0; --i) {
      end.rails.push_back({std::string(1, static_cast<char>('a' + input->Below(3))),
                           input->Flag() ? std::string(input->Below(2), 's') : "t",
                           std::string(input->Below(3) == 0 ? 0 : 1, 'x')});
    }
    ChannelAddress again;
    Require(ChannelAddress::Decode(end.Encode(), &again).ok() && again.Encode() == end.Encode());
  }
  const uint64_t roads = input->Take<uint64_t>();
  const auto reaches = [roads](size_t a, size_t b) { return (roads >> (8 * a + b) & 1) != 0; };
  const std::vector<Match> here =
      MatchRails(ends[0], ends[1], Role::kActive,
                 [&](const Match& match) { return reaches(match.own, match.peer); });
  const std::vector<Match> there =
      MatchRails(ends[1], ends[0], Role::kPassive,
                 [&](const Match& match) { return reaches(match.peer, match.own); });
  Require(here.size() == there.size());
  for (size_t i = 0; i < here.size(); ++i) {
    Require(here[i].own == there[i].peer && here[i].peer == there[i].own);
  }
}

}  // namespace
}  // namespace rdma_transport::fabric::striped

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rdma_transport;
  SetLogLevel(LogLevel::kOff);
  fuzz::Input input(data, size);
  if (input.Below(8) == 0) {
    fabric::striped::MatchBoth(&input);
  } else {
    fabric::striped::World(&input).Run();
  }
  return 0;
}
