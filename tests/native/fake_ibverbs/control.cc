// What tests command, by functions or as text.

#include "control.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <sstream>

#include "fake.h"

namespace fake_ibverbs {
namespace {

struct Field {
  const char* name;
  uint64_t FakeIbverbsStats::* value;
};

constexpr Field kFields[] = {
    {"writes", &FakeIbverbsStats::writes},
    {"sends", &FakeIbverbsStats::sends},
    {"reads", &FakeIbverbsStats::reads},
    {"completions", &FakeIbverbsStats::completions},
    {"failed_completions", &FakeIbverbsStats::failed_completions},
    {"completion_events", &FakeIbverbsStats::completion_events},
    {"highest_cq_fill", &FakeIbverbsStats::highest_cq_fill},
    {"cq_overruns", &FakeIbverbsStats::cq_overruns},
    {"rnr_naks_sent", &FakeIbverbsStats::rnr_naks_sent},
    {"rnr_naks_received", &FakeIbverbsStats::rnr_naks_received},
    {"registrations", &FakeIbverbsStats::registrations},
    {"registered_bytes", &FakeIbverbsStats::registered_bytes},
    {"device_lists", &FakeIbverbsStats::device_lists},
    {"contexts", &FakeIbverbsStats::contexts},
    {"pds", &FakeIbverbsStats::pds},
    {"mrs", &FakeIbverbsStats::mrs},
    {"channels", &FakeIbverbsStats::channels},
    {"cqs", &FakeIbverbsStats::cqs},
    {"qps", &FakeIbverbsStats::qps},
    {"last_vector", &FakeIbverbsStats::last_vector},
    {"held", &FakeIbverbsStats::held},
};
static_assert(sizeof(kFields) / sizeof(Field) == sizeof(FakeIbverbsStats) / sizeof(uint64_t));

std::string Answer(const std::string& wrong) { return wrong.empty() ? "ok" : "error: " + wrong; }

}  // namespace

std::string StatsAsJson(const FakeIbverbsStats& stats) {
  std::string text;
  for (const Field& field : kFields) {
    text += text.empty() ? "{\"" : ", \"";
    text += field.name;
    text += "\": " + std::to_string(stats.*field.value);
  }
  return text + "}";
}

std::string RunCommand(Fake* fake, const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  if (words.empty()) return "ok";
  const std::string& name = words[0];
  const size_t arguments = words.size() - 1;
  const size_t equals = name.find('=');
  if (equals != std::string::npos && arguments == 0) {
    return Answer(fake->Set(name.substr(0, equals), name.substr(equals + 1)));
  }
  if (name == "set" && arguments == 2) return Answer(fake->Set(words[1], words[2]));
  if (name == "set" && arguments == 1) return Answer(fake->Set(words[1], ""));
  if ((name == "fail" || name == "complete_with") && arguments == 3) {
    return Answer(fake->Set(name, words[1] + ":" + words[2] + ":" + words[3]));
  }
  if (name == "break_path" && arguments == 1) return Answer(fake->Set(name, words[1]));
  if (name == "port_event" && arguments == 1 && (words[1] == "0" || words[1] == "1")) {
    fake->PortEvent(words[1] == "1");
    return "ok";
  }
  if (name == "device_fatal" && arguments == 0) {
    fake->KillDevices();
    return "ok";
  }
  if (name == "reset" && arguments == 0) {
    fake->Reset();
    return "ok";
  }
  if (name == "stats" && arguments == 0) return StatsAsJson(fake->stats);
  return "error: what does \"" + line + "\" mean?";
}

void HandleControlSocket(Fake* fake) {
  for (;;) {
    char text[4096];
    sockaddr_un sender;
    socklen_t length = sizeof(sender);
    const ssize_t got = recvfrom(fake->control_fd, text, sizeof(text), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&sender), &length);
    if (got < 0) return;
    std::string answer;
    for (const std::string& line : Split(std::string(text, static_cast<size_t>(got)), '\n')) {
      if (!answer.empty()) answer += '\n';
      answer += RunCommand(fake, line);
    }
    if (length <= offsetof(sockaddr_un, sun_path)) continue;
    sendto(fake->control_fd, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
           reinterpret_cast<const sockaddr*>(&sender), length);
  }
}

extern "C" {

int fake_ibverbs_set(const char* key, const char* value) {
  Call call("");
  return call.fake.Set(key, value).empty() ? 0 : EINVAL;
}

int fake_ibverbs_fail(const char* verb, int nth, int error) {
  Call call("");
  return call.fake.Fail(verb, nth, error) ? 0 : EINVAL;
}

void fake_ibverbs_complete_with(int wc_status, int vendor_err, int nth) {
  Call call("");
  call.fake.CompleteWith(wc_status, vendor_err, nth);
}

void fake_ibverbs_break_path(bool broken) {
  Call call("");
  call.fake.Set("break_path", broken ? "1" : "0");
}

void fake_ibverbs_port_event(bool up) {
  Call call("");
  call.fake.PortEvent(up);
}

void fake_ibverbs_device_fatal() {
  Call call("");
  call.fake.KillDevices();
}

void fake_ibverbs_stats(FakeIbverbsStats* stats) {
  Call call("");
  *stats = call.fake.stats;
}

uint64_t fake_ibverbs_port_bytes(const char* device, int port) {
  Call call("");
  return call.fake.traffic[{device, static_cast<uint32_t>(port)}].bytes;
}

int fake_ibverbs_regions(FakeIbverbsMemory* regions, int room) {
  Call call("");
  int count = 0;
  for (const auto& [key, mr] : call.fake.by_rkey) {
    if (count++ >= room) continue;
    regions[count - 1] = {reinterpret_cast<uintptr_t>(mr->addr), mr->iova, mr->length, mr->access,
                          key};
  }
  return count;
}

int fake_ibverbs_queue_pairs(FakeIbverbsQueuePair* pairs, int room) {
  Call call("");
  int count = 0;
  for (const auto& [number, qp] : call.fake.qps) {
    if (count++ < room) pairs[count - 1] = {number, qp->attr.qp_access_flags};
  }
  return count;
}

void fake_ibverbs_reset() {
  Call call("");
  call.fake.Reset();
}

}  // extern "C"

}  // namespace fake_ibverbs
