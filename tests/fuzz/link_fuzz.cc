// A link between a task and a hostile peer: notifications of every kind, right and wrong, in memory
// that changes while the link reads it; tensors that the task sends meanwhile; and transfers that
// end well or badly.

#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "changing_memory.h"
#include "input.h"
#include "protocol/integrity.h"
#include "protocol/link.h"
#include "scripted_fabric.h"

namespace rdma_transport::fuzz {
namespace {

constexpr size_t kMaxOperations = 64;
constexpr uint64_t kRegion = 1;
constexpr size_t kRegionBytes = 16384;

Settings LinkSettings(Input* input) {
  char* nothing = nullptr;
  Settings settings;
  std::vector<std::string> warnings;
  LoadSettings(&nothing, &settings, &warnings).IgnoreError();
  settings.inline_max = 64;
  settings.zero_copy = input->Flag();
  settings.checksum = input->Flag();
  return settings;
}

// What a consumer does with a tensor.
void Use(const Delivery& delivery) {
  if (!delivery.status.ok() || delivery.data == nullptr) return;
  volatile char sink = 0;
  for (uint64_t i = 0; i < delivery.bytes; ++i) sink = sink ^ delivery.data[i];
}

class OneWaiter final : public PendingRecv {
 public:
  ~OneWaiter() override {
    if (claimed() && deliveries_ != 1) std::abort();  // the caller that claims it completes it
  }
  void OnDelivery(Delivery delivery) override {
    ++deliveries_;
    Use(delivery);
    delivery_ = std::move(delivery);
  }
  void OnUseGrpc(const std::string&) override {}

 private:
  int deliveries_ = 0;
  Delivery delivery_;
};

class OneCaller final : public PendingCall {
 public:
  ~OneCaller() override {
    if (claimed() && ends_ != 1) std::abort();
  }
  void OnDelivery(Delivery) override { ++ends_; }

 private:
  int ends_ = 0;
};

class Owner final : public LinkOwner {
 public:
  void OnLinkUp(const std::shared_ptr<Link>&) override {}
  void OnLinkDown(const std::shared_ptr<Link>&, const Status&, bool) override {}
  void OnLinkReleased(const std::shared_ptr<Link>&) override {}
  void OnArrival(int64_t, const KeyId&, Arrival arrival) override {
    arrivals.push_back(std::move(arrival));
  }
  void OnRestart(Link*, int64_t, uint32_t) override {}
  void OnRestarted(Link*, int64_t) override {}
  void OnAbort(Link*, StepAbort abort) override { aborts_.OnPeerAbort(&peer_, 1, abort); }
  void OnCall(std::shared_ptr<IncomingCall> call) override { calls.push_back(std::move(call)); }
  void ArmTimer() override {}
  void OnLost(const std::shared_ptr<Link>&, std::vector<UnackedTensor>) override {}

  std::deque<Arrival> arrivals;
  std::deque<std::shared_ptr<IncomingCall>> calls;

 private:
  const TaskPair peer_{"/job:here", "/job:peer"};
  StepAborts aborts_;
};

// The bytes of one notification: of the right form, with any values, or any bytes at all.
std::string Notification(Input* input) {
  const auto bytes_of = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  const size_t form = input->Below(6);
  if (form == 0) return input->Bytes(input->Take<uint8_t>());
  if (form == 1) {
    ControlMessage message = {};
    message.type = static_cast<MessageType>(input->Below(22));
    message.buffer_id = input->Number();
    message.generation = static_cast<uint32_t>(message.buffer_id);
    return bytes_of(message);
  }
  if (form == 5) {
    AbortMessage message = {};
    message.type = MessageType::kAbort;
    message.step = static_cast<int64_t>(input->Number());
    message.generation = static_cast<uint32_t>(input->Number());
    const std::string error = input->Bytes(input->Below(32));
    message.error_length = static_cast<uint32_t>(input->Flag() ? error.size() : input->Number());
    return bytes_of(message) + error;
  }
  if (form == 2) {
    SlotMessage message = {};
    message.type = MessageType::kSlot;
    message.flags = input->Take<uint8_t>();
    message.slot = static_cast<uint16_t>(input->Number());
    message.edge = static_cast<uint32_t>(input->Number());
    message.region_key = input->Number();
    message.region_offset = input->Number() * 64;
    message.generation = static_cast<uint32_t>(input->Number());
    if ((message.flags & 4) == 0) return bytes_of(message);
    return bytes_of(PoolSlotMessage{MessageType::kPoolSlot, 0, message.slot, message.edge,
                                    message.region_key, message.region_offset});
  }
  if (form == 3) {
    StaticMessage message = {};
    message.type = MessageType::kStatic;
    message.flags = input->Take<uint8_t>();
    message.slot = static_cast<uint16_t>(input->Number());
    message.edge = static_cast<uint32_t>(input->Number());
    message.buffer_id = input->Number();
    message.generation = static_cast<uint32_t>(input->Number());
    message.suffix_length = static_cast<uint32_t>(input->Number());
    return bytes_of(message) + input->Bytes(input->Below(32));
  }
  constexpr MessageType kTypes[] = {MessageType::kInline, MessageType::kDescriptor,
                                    MessageType::kPull, MessageType::kEdge};
  TensorHeader header = {};
  header.type = kTypes[input->Below(4)];
  header.flags = input->Take<uint8_t>();
  header.dtype = static_cast<uint32_t>(input->Number());
  header.step = static_cast<int64_t>(input->Number());
  header.source.buffer_id = input->Number();
  header.source.region_key = input->Number();
  header.source.region_offset = input->Number() * 64;
  header.bytes = input->Number();
  header.checksum = input->Take<uint32_t>();
  std::vector<int64_t> dims(input->Below(4));
  for (int64_t& dim : dims) dim = static_cast<int64_t>(input->Number());
  const std::string key = input->Bytes(input->Below(16));
  std::string payload = input->Bytes(input->Below(32));
  if (header.type != MessageType::kInline) payload.clear();
  if (!payload.empty() && input->Flag()) header.bytes = payload.size();
  const TensorFrame frame(&header, dims.data(), static_cast<int>(dims.size()), key, payload.data(),
                          payload.size());
  std::string bytes;
  for (int i = 0; i < frame.count(); ++i) {
    bytes.append(static_cast<const char*>(frame.parts()[i].iov_base), frame.parts()[i].iov_len);
  }
  return bytes;
}

class World {
 public:
  explicit World(Input* input)
      : input_(input),
        device_(Manners{/*maps=*/input->Flag(), /*refuses=*/false}),
        arena_(&device_, 32 << 20),
        receive_arena_(&device_, std::make_shared<memory::Budget>(32 << 20),
                       fabric::Access::kRemoteReadWrite),
        slots_(&arena_),
        settings_(LinkSettings(input)),
        link_(std::make_shared<Link>(
            LinkContext{&device_, &arena_, &slots_, &receive_arena_, &settings_, &traffic_},
            &owner_,
            /*deadline=*/0)) {
    if (!link_->Open().ok()) std::abort();
    link_->set_remote({"/job:peer", 1});
    device_.channel()->AddRegion(kRegion, kRegionBytes);
    link_->channel()->Connect("", fabric::Role::kActive).IgnoreError();
  }

  void Run() {
    for (size_t i = 0; i < kMaxOperations && !input_->empty(); ++i) {
      if (device_.channel()->closed()) break;
      Operate();
    }
    // The peer dies, or only the link does.
    device_.channel()->FinishClose(
        Status(input_->Flag() ? Code::kUnavailable : Code::kAborted, "over"));
    taken_.clear();
    owner_.arrivals.clear();
    owner_.calls.clear();
    recvs_.clear();
    link_->ReleaseOutstanding();
  }

 private:
  void Operate() {
    switch (input_->Below(10)) {
      case 0:
        return Send();
      case 1:
        return TakeArrival();
      case 2:
        if (!taken_.empty()) taken_.pop_front();
        return;
      case 3:
        device_.channel()->EndTransfer(input_->Flag() ? OkStatus()
                                                      : Status(Code::kUnavailable, "broken"));
        return;
      case 4:
        return Tick();
      case 5:
        return DeclareEdge();
      case 6:
        return ProvideSlot();
      case 7:
        return Call();
      default:
        return Notify();
    }
  }

  // Calls in both directions, and their ends.
  void Call() {
    CallMessage message = {};
    message.type = input_->Flag() ? MessageType::kCall : MessageType::kReply;
    message.method = static_cast<CallMethod>(input_->Below(3));
    message.result = static_cast<CallResult>(input_->Below(4));
    message.number = input_->Below(4);
    switch (input_->Below(4)) {
      case 0: {
        auto call = std::make_shared<OneCaller>();
        if (link_->Call(message.method, "request", call) == 0 && call->claimed()) std::abort();
        return;
      }
      case 1:
        link_->CancelCall(message.number);
        return;
      case 2:
        if (owner_.calls.empty()) return;
        owner_.calls.front()->OnCancel([] {});
        if (input_->Flag()) owner_.calls.front()->Fail(input_->Bytes(input_->Below(32)));
        owner_.calls.pop_front();
        return;
      default: {
        const std::string body = input_->Bytes(input_->Below(32));
        const CallFrame frame(message, body);
        std::string bytes;
        for (int i = 0; i < frame.count(); ++i) {
          bytes.append(static_cast<const char*>(frame.parts()[i].iov_base),
                       frame.parts()[i].iov_len);
        }
        link_->OnNotify(bytes.data(), bytes.size());
      }
    }
  }

  template <typename Message>
  void NotifyRight(const Message& message) {
    link_->OnNotify(reinterpret_cast<const char*>(&message), sizeof(message));
  }

  // As an honest peer would: an edge with a slot in its memory, or in that of the link.
  void DeclareEdge() {
    TensorHeader header = {};
    header.type = MessageType::kEdge;
    const uint32_t pool = input_->Flag() ? 1 : 0;
    header.bytes = 128;
    header.edge = {++declared_, pool};
    NotifyRight(header);
    if (pool != 0) {
      ControlMessage request(MessageType::kRequestSlots);
      request.pool = pool;
      request.count = memory::kSlots;
      return NotifyRight(request);
    }
    SlotMessage slot = {};
    slot.type = MessageType::kSlot;
    slot.edge = declared_;
    slot.region_key = kRegion;
    slot.region_offset = input_->Below(64) * 64;
    NotifyRight(slot);
  }

  // As an honest peer would, for a pool of an edge that the link has declared.
  void ProvideSlot() {
    PoolSlotMessage slot = {};
    slot.type = MessageType::kPoolSlot;
    slot.pool = static_cast<uint32_t>(1 + input_->Below(2));
    slot.slot = static_cast<uint16_t>(input_->Below(2));
    slot.region_key = kRegion;
    slot.region_offset = input_->Below(64) * 64;
    NotifyRight(slot);
  }

  void Notify() {
    const std::vector<Change> changes = TakeChanges(input_);
    WithChangingMemory(Notification(input_), changes,
                       [&](const char* data, size_t length) { link_->OnNotify(data, length); });
  }

  void Send() {
    constexpr size_t kSizes[] = {0, 8, 100, 100, 5000};
    const size_t bytes = kSizes[input_->Below(5)];
    const std::string key =
        std::string("edge") + static_cast<char>('a' + input_->Below(2)) + ";0:0";
    const std::vector<int64_t> dims = {static_cast<int64_t>(bytes)};
    auto memory = std::make_shared<std::string>(bytes, 'x');
    Outgoing tensor;
    tensor.step = 1;
    tensor.key = key;
    tensor.dims = dims.data();
    tensor.rank = 1;
    tensor.data = memory->data();
    tensor.bytes = bytes;
    tensor.mutable_source = input_->Flag();
    tensor.blocks_until_release = input_->Flag();
    tensor.owner = OwnerRef::Holding(std::move(memory));
    link_->Send(&tensor);
  }

  // As the endpoint hands it to a waiter.
  void TakeArrival() {
    if (owner_.arrivals.empty()) return;
    Arrival arrival = std::move(owner_.arrivals.front());
    owner_.arrivals.pop_front();
    if (arrival.pull) return;
    if (arrival.channel != nullptr && arrival.delivery.status.ok()) {
      auto recv = std::make_shared<OneWaiter>();
      recv->Claim();
      recvs_.push_back(recv);
      return link_->ReadThenDeliver(std::move(arrival), recv);
    }
    Verify("/job:peer", &arrival.delivery);
    Use(arrival.delivery);
    taken_.push_back(std::move(arrival.delivery));
  }

  void Tick() {
    Status reason;
    if (input_->Flag()) link_->AddPending(std::make_shared<OneWaiter>(), &reason);
    now_ += static_cast<Nanos>(input_->Below(8)) * kSecond;
    link_->Tick(now_, input_->Flag());
  }

  Input* const input_;
  Traffic traffic_{"/job:here", "/job:peer"};
  ScriptedDevice device_;
  memory::Arena arena_;
  memory::Arena receive_arena_;
  memory::SlotPools slots_;
  const Settings settings_;
  Owner owner_;
  std::shared_ptr<Link> link_;
  std::deque<Delivery> taken_;
  std::vector<std::shared_ptr<OneWaiter>> recvs_;
  Nanos now_ = kSecond;
  uint32_t declared_ = 0;
};

}  // namespace
}  // namespace rdma_transport::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rdma_transport::SetLogLevel(rdma_transport::LogLevel::kOff);
  rdma_transport::fuzz::Input input(data, size);
  rdma_transport::fuzz::World(&input).Run();
  return 0;
}
