// Both ends of an RPC before a hostile other end: the client (`RpcClient`), the server
// (`Session`), and the text that a reply is. Notifications come before, while and after a call is
// under way, in memory that changes while it is read.

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "changing_memory.h"
#include "input.h"
#include "protocol/bootstrap.h"
#include "rpc/listener.h"
#include "rpc/rpc_client.h"
#include "rpc/session.h"
#include "rpc/wire.h"
#include "scripted_fabric.h"

namespace rdma_transport::rpc {
namespace {

using fuzz::Input;
using fuzz::ScriptedChannel;

constexpr size_t kMaxNotifications = 32;
const Status kOver(Code::kUnavailable, "over");

Settings ExchangeSettings() {
  char* nothing = nullptr;
  Settings settings;
  std::vector<std::string> warnings;
  LoadSettings(&nothing, &settings, &warnings).IgnoreError();
  settings.inline_max = 16;
  settings.peer_timeout = 4 * kMillisecond;
  return settings;
}

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A reply's text: one that RpcClient may take, or any.
std::string Text(Input* input) {
  if (input->Flag()) return input->Bytes(input->Take<uint8_t>());
  std::string text;
  const auto put = [&](auto value) { text += BytesOf(value); };
  const auto payloads = static_cast<uint32_t>(input->Below(4));
  put(static_cast<uint32_t>(input->Flag() ? 0 : input->Number()));
  const std::string message = input->Bytes(input->Below(8));
  const std::string head = input->Bytes(input->Below(8));
  put(static_cast<uint32_t>(message.size()));
  put(static_cast<uint32_t>(head.size()));
  put(payloads);
  std::string bodies;
  for (uint32_t i = 0; i < payloads; ++i) {
    const uint64_t place = input->Below(4);
    const uint64_t bytes = input->Number();
    put(bytes);
    put(place);
    if (place == 0) bodies += std::string(bytes < 256 ? bytes : 0, 'p');
  }
  return text + message + head + bodies;
}

std::string Notification(Input* input, uint64_t call) {
  if (input->Below(8) == 0) return input->Bytes(input->Take<uint8_t>());
  Header header = {};
  header.type = static_cast<Type>(input->Below(9));
  header.call = input->Below(8) == 0 ? input->Number() : call;
  std::string table;
  std::string bytes;
  header.count = static_cast<uint32_t>(input->Below(4));
  if (header.type == Type::kPart) {
    header.count = 0;
    bytes = Text(input);
    header.total = bytes.size();
    if (input->Flag()) header.total = input->Number();
  } else if (header.type == Type::kRequest || header.type == Type::kReceiveBuffer) {
    for (uint32_t i = 0; i < header.count; ++i) {
      table += BytesOf(Place{input->Number(), input->Number(), input->Number()});
    }
    if (header.type == Type::kRequest) bytes = input->Bytes(input->Below(16));
  } else {
    for (uint32_t i = 0; i < header.count; ++i) table += BytesOf(input->Number());
  }
  header.length = input->Below(16) == 0 ? input->Number() : bytes.size();
  if (input->Below(16) == 0) header.count = static_cast<uint32_t>(input->Number());
  return BytesOf(header) + table + bytes;
}

void Deliver(Input* input, fabric::ChannelHandler* handler, uint64_t call) {
  const std::vector<fuzz::Change> changes = fuzz::TakeChanges(input);
  fuzz::WithChangingMemory(
      Notification(input, call), changes,
      [&](const char* data, size_t length) { handler->OnNotify(data, length); });
}

// What both ends stand on.
struct Stand {
  explicit Stand(Input* input)
      : device(fuzz::Manners{/*maps=*/input->Flag(), /*refuses=*/false}),
        arena(&device, 16 << 20),
        receive_arena(&device, std::make_shared<memory::Budget>(16 << 20),
                      fabric::Access::kRemoteReadWrite) {}

  Context MakeContext() {
    return {"fuzzed", "bytes", &device, &arena, &receive_arena, &settings, &no_secret};
  }

  const Settings settings = ExchangeSettings();
  SecretFile no_secret{""};
  fuzz::ScriptedDevice device;
  memory::Arena arena;
  memory::Arena receive_arena;
};

// --- The server ---

void ServeHostileCaller(Input* input) {
  Stand stand(input);
  int depth = 0;
  const auto payload = std::make_shared<std::string>(200, 'y');
  const Handler handler = [&](std::string_view request) {
    Reply reply;
    reply.head = std::string(request.substr(0, 4));
    for (const char byte : request) {
      const size_t bytes = std::min<size_t>(static_cast<uint8_t>(byte), payload->size());
      reply.payloads.push_back({payload->data(), bytes});
    }
    reply.owner = OwnerRef::Holding(payload);
    return reply;
  };
  auto session = std::make_shared<Session>(stand.MakeContext(), "client", handler,
                                           [](const std::function<void()>& work) { work(); });
  std::string own;
  if (!session->Open("", /*channel_key=*/"", &own).ok()) std::abort();
  ScriptedChannel* channel = stand.device.channel().get();
  channel->AddRegion(1, 256);
  // A call that wants places waits for them. This thread brings what comes meanwhile, and then
  // places or the end, without which the call would wait forever.
  channel->on_notify = [&](std::string_view bytes) {
    Message message;
    if (!Parse(bytes.data(), bytes.size(), &message).ok()) std::abort();
    if (message.header.type != Type::kSizes) return;
    if (++depth < 4) Deliver(input, session.get(), message.header.call);
    if (input->Flag()) session->Quit();
    if (channel->closed()) channel->FinishClose(kOver);
    Header buffer = {};
    buffer.type = Type::kReceiveBuffer;
    buffer.call = message.header.call;
    const std::string valid = BytesOf(buffer);
    session->OnNotify(valid.data(), valid.size());
    --depth;
  };
  for (size_t i = 0; i < kMaxNotifications && !input->empty() && !channel->closed(); ++i) {
    Deliver(input, session.get(), input->Below(3));
    if (input->Flag()) channel->EndTransfer(OkStatus());
  }
  channel->on_notify = nullptr;
  channel->FinishClose(kOver);
  session->Quit();
}

// --- The client ---

// A listener that gives every client the same address.
const std::string& DoorAddress() {
  static auto* listener = new Listener;
  static const auto* address = new std::string([] {
    const Status opened = listener->Open(0, [](const std::string*) {
      BootstrapReply reply;
      reply.version = kVersion;
      reply.from.task = "server";
      reply.channel = "scripted";
      return reply.Encode();
    });
    if (!opened.ok()) std::abort();
    return "127.0.0.1:" + std::to_string(listener->port());
  }());
  return *address;
}

void Use(const Response& response) {
  volatile char receive_arena = 0;
  for (const Arrived& arrived : response.payloads) {
    for (size_t i = 0; i < arrived.bytes; ++i) receive_arena = receive_arena ^ arrived.data[i];
  }
}

void CallHostileServer(Input* input) {
  Stand stand(input);
  const std::atomic<bool> cancelled{false};
  std::shared_ptr<RpcClient> client;
  const Status connected = RpcClient::Connect(stand.MakeContext(), DoorAddress(),
                                              Now() + 10 * kSecond, &cancelled, &client);
  if (!connected.ok()) std::abort();
  ScriptedChannel* channel = stand.device.channel().get();
  size_t notifications = 0;
  channel->on_notify = [&](std::string_view bytes) {
    Message message;
    if (!Parse(bytes.data(), bytes.size(), &message).ok()) std::abort();
    const bool asks =
        message.header.type == Type::kRequest || message.header.type == Type::kReceiveBuffer;
    while (asks && ++notifications < kMaxNotifications) {
      Deliver(input, client.get(), message.header.call);
      if (input->empty() || input->Flag()) break;
    }
    // Nobody else would end a call whose reply does not come.
    if (!asks || channel->closed() || notifications >= kMaxNotifications) {
      channel->FinishClose(kOver);
    }
  };
  for (int i = 0; i < 4 && !channel->closed(); ++i) {
    const Response response = client->Call("request");
    if (response.replied && response.status.ok()) Use(response);
  }
  client->Leave();
  channel->FinishClose(kOver);
}

}  // namespace
}  // namespace rdma_transport::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rdma_transport;
  SetLogLevel(LogLevel::kOff);
  fuzz::Input input(data, size);
  switch (input.Below(3)) {
    case 0:
      rpc::ServeHostileCaller(&input);
      break;
    case 1:
      rpc::CallHostileServer(&input);
      break;
    default: {
      const std::string text = input.Bytes(size);
      rpc::Response response;
      if (rpc::DecodeReply(text, &response).ok()) {
        for (const auto& arrived : response.payloads) {
          if (arrived.place == 0 && arrived.bytes > text.size()) std::abort();
        }
      }
    }
  }
  return 0;
}
