// The state of the library in this process, all of it under one lock.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config.h"
#include "control.h"
#include "objects.h"
#include "wire.h"

namespace fake_ibverbs {

constexpr Nanos kNever = INT64_MAX;
constexpr Nanos kMicrosecond = 1000;
constexpr Nanos kMillisecond = 1000000;

Nanos Now();

struct Failure {
  std::string verb;
  int countdown;
  int error;
};

struct ForcedCompletion {
  int countdown;
  ibv_wc_status status;
  uint32_t vendor_err;
};

// Of one port.
struct Traffic {
  uint64_t bytes = 0;  // payload that it has sent, reads by peers included
  Nanos free_at = 0;
};

struct Fake : FrameHandler {
  // That of this process. It lives as long as the process, as does its engine thread; a forked
  // child gets another one and leaves its parent's alone.
  static Fake& Get();

  explicit Fake(Fake* ancestor);

  // For callers other than the engine, which lets them go first.
  void Lock();
  void Unlock() { mu.unlock(); }
  // Opens the sockets and starts the thread, at the first call of all.
  void Start();
  void WakeEngine();

  // An empty string, or what is wrong. Changes of ports raise their events.
  std::string Set(const std::string& key, const std::string& value);
  bool Fail(const std::string& verb, int nth, int error);
  void CompleteWith(int status, int vendor_err, int nth);
  void PortEvent(bool up);
  void KillDevices();
  // False for an unknown name.
  bool Raise(const std::string& event);
  void Reset();
  // The injected error of this call, or 0.
  int TakeFailure(const char* verb);

  const DeviceConfig& ConfigOf(const ibv_context* context) const;
  // Null if there is no such port.
  const PortConfig* PortOf(const ibv_context* context, unsigned int port) const;
  uint32_t NewKey();
  void RaiseAsync(Context* context, const ibv_async_event& event);
  void RaiseQpEvent(Qp* qp, ibv_event_type type);

  // The work of the engine thread.
  void RunEngine();
  Nanos RunQueuePairs(std::unique_lock<std::mutex>* lock);
  void OnFrame(uint64_t link, const Frame& frame, const char* payload) override;
  void OnLinkLost(uint64_t link) override;

  std::mutex mu;
  // Calls that want the lock, and those that have had it.
  std::atomic<int> waiting{0};
  std::atomic<uint64_t> served{0};

  // Keeps what a forked child leaves alone reachable.
  Fake* const ancestor;
  bool started = false;
  bool asleep = false;
  // A queue pair that had its turn already has got new work from another one.
  bool unsettled = false;
  int wake_fd = -1;
  int control_fd = -1;
  Wire wire;

  Config config;
  bool path_broken = false;
  Nanos broken_until = 0;
  std::vector<Failure> failures;
  std::vector<ForcedCompletion> forced;
  FakeIbverbsStats stats = {};
  std::map<std::pair<std::string, uint32_t>, Traffic> traffic;  // by device and port
  std::mt19937_64 random;

  std::map<std::string, std::unique_ptr<Device>> devices;
  std::vector<Context*> contexts;
  std::map<uint32_t, Qp*> qps;
  std::vector<Cq*> cqs;
  uint32_t next_qp = 0;
  std::unordered_map<uint32_t, Mr*> by_lkey;
  std::unordered_map<uint32_t, Mr*> by_rkey;

 private:
  void ReadEnvironment();
  std::string SetQuietly(const std::string& key, const std::string& value);
  void RaisePortEvents(const Config& before);
};

// A call into the library: holds the lock, and knows whether the call is to fail at once, because
// that was injected, the device is dead, or the object belongs to the parent of a forked child.
class Call {
 public:
  enum class Kind { kUse, kEnd };
  explicit Call(const char* verb, const ibv_context* context = nullptr, Kind kind = Kind::kUse);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { fake.Unlock(); }

  Fake& fake;
  int error = 0;
};

// What verbs that return objects do with errors.
template <typename T>
T* NullWith(int error) {
  errno = error;
  return nullptr;
}

// The host address of a range that the key allows this access to, or null.
char* FindMemory(const std::unordered_map<uint32_t, Mr*>& keys, uint32_t key, const ibv_pd* pd,
                 uint64_t address, uint64_t length, unsigned int access);

// Puts a completion into the queue, with event and overrun.
void Complete(Fake* fake, ibv_cq* cq, const Completion& completion, bool solicited);
// The queue holds no completion any more, and its queue pairs break.
void BreakCq(Fake* fake, Cq* cq);
// Forgets the completions of a queue pair that is reset or destroyed.
void DropCompletions(ibv_cq* cq, uint32_t qp_num);

int PollCq(ibv_cq* cq, int count, ibv_wc* wc);
int RequestNotify(ibv_cq* cq, int solicited_only);
int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int PostReceive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);

// Runs one line of text, and says how that went.
std::string RunCommand(Fake* fake, const std::string& line);
void HandleControlSocket(Fake* fake);
std::string StatsAsJson(const FakeIbverbsStats& stats);
bool ParseWcStatus(const std::string& text, int* status);

}  // namespace fake_ibverbs
