#include "fake.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace fake_ibverbs {
namespace {

std::atomic<Fake*> current{nullptr};

void BeforeFork() { current.load()->Lock(); }

void AfterForkInParent() { current.load()->Unlock(); }

// The engine does not exist in the child, and its sockets would hide the parent's end from peers.
void AfterForkInChild() {
  Fake* parents = current.load();
  parents->wire.CloseAll();
  if (parents->wake_fd >= 0) close(parents->wake_fd);
  if (parents->control_fd >= 0) close(parents->control_fd);
  current.store(new Fake(parents));
}

std::string WithoutPrefix(const std::string& verb) {
  std::string name = verb;
  if (name.rfind('_', 0) == 0) name.erase(0, 1);
  if (name.rfind("ibv_", 0) == 0) name.erase(0, 4);
  return name;
}

}  // namespace

Nanos Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

Fake& Fake::Get() {
  static const bool once = [] {
    current.store(new Fake(nullptr));
    pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild);
    return true;
  }();
  static_cast<void>(once);
  return *current.load();
}

Fake::Fake(Fake* ancestor) : ancestor(ancestor), wire(this) {
  std::random_device seed;
  random.seed((uint64_t{seed()} << 32) | seed());
  ReadEnvironment();
}

void Fake::ReadEnvironment() {
  const char* text = std::getenv("FAKE_IBVERBS");
  if (text == nullptr) return;
  for (const std::string& setting : Split(text, ';')) {
    const size_t equals = setting.find('=');
    if (equals != std::string::npos &&
        SetQuietly(setting.substr(0, equals), setting.substr(equals + 1)).empty()) {
      continue;
    }
    std::fprintf(stderr, "FAKE_IBVERBS: what does \"%s\" mean?\n", setting.c_str());
    std::abort();
  }
}

void Fake::Lock() {
  waiting.fetch_add(1);
  mu.lock();
  waiting.fetch_sub(1);
  served.fetch_add(1);
}

void Fake::Start() {
  if (started) return;
  started = true;
  wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  control_fd = BindAbstract(SOCK_DGRAM, "fake_ibverbs." + std::to_string(getpid()));
  if (wake_fd < 0 || !wire.Open()) {
    std::fprintf(stderr, "fake_ibverbs: no sockets: %s\n", std::strerror(errno));
    std::abort();
  }
  // Signals are for the application's threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([this] { RunEngine(); });
  pthread_setname_np(thread.native_handle(), "fake_ibverbs");
  thread.detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Fake::WakeEngine() {
  if (!asleep) return;
  asleep = false;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd, &one, sizeof(one));
}

std::string Fake::Set(const std::string& key, const std::string& value) {
  const Config before = config;
  const std::string wrong = SetQuietly(key, value);
  RaisePortEvents(before);
  return wrong;
}

std::string Fake::SetQuietly(const std::string& key, const std::string& value) {
  const std::vector<std::string> parts = Split(value, ':');
  uint64_t first = 0;
  uint64_t last = 0;
  int error = 0;
  if (key == "break_path") {
    if (!ParseNumber(value, 1, &first)) return "break_path is 0 or 1";
    path_broken = first != 0;
    WakeEngine();
    return "";
  }
  if (key == "flap_ms") {
    if (!ParseNumber(value, 1000000, &first)) return "flap_ms is a number";
    broken_until = Now() + static_cast<Nanos>(first) * kMillisecond;
    WakeEngine();
    return "";
  }
  if (key == "fail") {
    if (parts.size() != 3 || !ParseNumber(parts[1], 1 << 30, &first) ||
        !ParseErrno(parts[2], &error) || !Fail(parts[0], static_cast<int>(first), error)) {
      return "fail takes VERB:NTH:ERROR";
    }
    return "";
  }
  if (key == "complete_with") {
    if (parts.size() != 3 || !ParseWcStatus(parts[0], &error) ||
        !ParseNumber(parts[1], 1 << 30, &first) || !ParseNumber(parts[2], 1 << 30, &last)) {
      return "complete_with takes STATUS:VENDOR:NTH";
    }
    CompleteWith(error, static_cast<int>(first), static_cast<int>(last));
    return "";
  }
  if (key == "raise") return Raise(value) ? "" : "raise takes an event";
  Config after = config;
  if (!after.Set(key, value)) return "unknown key or bad value: " + key + "=" + value;
  config = std::move(after);
  WakeEngine();
  return "";
}

bool Fake::Raise(const std::string& name) {
  if (name == "cq_err") {
    for (Cq* cq : cqs) BreakCq(this, cq);
    WakeEngine();
    return true;
  }
  const std::map<std::string, ibv_event_type> types = {
      {"gid_change", IBV_EVENT_GID_CHANGE},
      {"lid_change", IBV_EVENT_LID_CHANGE},
      {"pkey_change", IBV_EVENT_PKEY_CHANGE},
      {"sm_change", IBV_EVENT_SM_CHANGE},
      {"client_reregister", IBV_EVENT_CLIENT_REREGISTER}};
  const auto type = types.find(name);
  if (type == types.end()) return false;
  for (Context* context : contexts) {
    for (size_t i = 0; i < ConfigOf(&context->context).ports.size(); ++i) {
      ibv_async_event event = {};
      event.element.port_num = static_cast<int>(i + 1);
      event.event_type = type->second;
      RaiseAsync(context, event);
    }
  }
  return true;
}

void Fake::RaisePortEvents(const Config& before) {
  if (config.quiet) return;
  for (Context* context : contexts) {
    const auto it = before.devices.find(context->owner->name);
    if (it == before.devices.end()) continue;
    const std::vector<PortConfig>& old = it->second.ports;
    const std::vector<PortConfig>& ports = ConfigOf(&context->context).ports;
    for (size_t i = 0; i < std::min(old.size(), ports.size()); ++i) {
      ibv_async_event event = {};
      event.element.port_num = static_cast<int>(i + 1);
      const auto raise = [&](ibv_event_type type) {
        event.event_type = type;
        RaiseAsync(context, event);
      };
      const bool was_up = old[i].state == IBV_PORT_ACTIVE;
      const bool is_up = ports[i].state == IBV_PORT_ACTIVE;
      if (was_up != is_up) raise(is_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
      if (!(old[i].gids == ports[i].gids)) raise(IBV_EVENT_GID_CHANGE);
      if (old[i].lid != ports[i].lid) raise(IBV_EVENT_LID_CHANGE);
      if (old[i].pkeys != ports[i].pkeys) raise(IBV_EVENT_PKEY_CHANGE);
    }
  }
}

bool Fake::Fail(const std::string& verb, int nth, int error) {
  if (nth < 1 || error < 1 || verb.empty()) return false;
  failures.push_back({WithoutPrefix(verb), nth, error});
  return true;
}

int Fake::TakeFailure(const char* verb) {
  int error = 0;
  for (auto it = failures.begin(); it != failures.end();) {
    if (it->verb == verb && --it->countdown == 0) {
      error = it->error;
      it = failures.erase(it);
    } else {
      ++it;
    }
  }
  return error;
}

void Fake::CompleteWith(int status, int vendor_err, int nth) {
  forced.push_back({nth, static_cast<ibv_wc_status>(status), static_cast<uint32_t>(vendor_err)});
}

void Fake::PortEvent(bool up) { Set("port_state", up ? "active" : "down"); }

void Fake::KillDevices() {
  for (Context* context : contexts) {
    if (context->fatal) continue;
    context->fatal = true;
    ibv_async_event event = {};
    event.event_type = IBV_EVENT_DEVICE_FATAL;
    RaiseAsync(context, event);
  }
}

void Fake::Reset() {
  config = Config();
  path_broken = false;
  broken_until = 0;
  traffic.clear();
  failures.clear();
  forced.clear();
  FakeIbverbsStats fresh = {};
  fresh.registered_bytes = stats.registered_bytes;
  fresh.device_lists = stats.device_lists;
  fresh.contexts = stats.contexts;
  fresh.pds = stats.pds;
  fresh.mrs = stats.mrs;
  fresh.channels = stats.channels;
  fresh.cqs = stats.cqs;
  fresh.qps = stats.qps;
  stats = fresh;
  ReadEnvironment();
  WakeEngine();
}

const DeviceConfig& Fake::ConfigOf(const ibv_context* context) const {
  const auto it = config.devices.find(context->device->name);
  return it != config.devices.end() ? it->second : config.future;
}

const PortConfig* Fake::PortOf(const ibv_context* context, unsigned int port) const {
  const DeviceConfig& device = ConfigOf(context);
  return port >= 1 && port <= device.ports.size() ? &device.ports[port - 1] : nullptr;
}

uint32_t Fake::NewKey() {
  for (;;) {
    const auto key = static_cast<uint32_t>(random());
    if (key != 0 && by_lkey.count(key) == 0 && by_rkey.count(key) == 0) return key;
  }
}

void Fake::RaiseAsync(Context* context, const ibv_async_event& event) {
  context->events.push_back(event);
  context->ready.Set(true);
}

void Fake::RaiseQpEvent(Qp* qp, ibv_event_type type) {
  ibv_async_event event = {};
  event.element.qp = qp;
  event.event_type = type;
  RaiseAsync(ContextOf(qp->context), event);
}

Call::Call(const char* verb, const ibv_context* context, Kind kind) : fake(Fake::Get()) {
  fake.Lock();
  fake.Start();
  if (context != nullptr) {
    const Context* object = ContextOf(context);
    if (object->fake != &fake || (object->fatal && kind == Kind::kUse)) error = EIO;
  }
  if (error == 0 && !fake.failures.empty()) error = fake.TakeFailure(verb);
}

}  // namespace fake_ibverbs
