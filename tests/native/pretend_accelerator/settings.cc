#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "control.h"

namespace pretend_accelerator {
namespace {

using Value = std::atomic<int64_t> Settings::*;

const std::map<std::string, Value>& Table() {
  static const auto* table = new std::map<std::string, Value>{
      {"devices", &Settings::devices},         {"delay_us", &Settings::delay_us},
      {"copy_us", &Settings::copy_us},         {"mib_us", &Settings::mib_us},
      {"in_order", &Settings::in_order},       {"fail_alloc", &Settings::fail_alloc},
      {"fail_dtoh", &Settings::fail_dtoh},     {"fail_htod", &Settings::fail_htod},
      {"fail_stream", &Settings::fail_stream},
  };
  return *table;
}

}  // namespace

bool Settings::Set(const std::string& pairs) {
  std::string separated = pairs;
  for (char& c : separated) c = c == ',' ? ' ' : c;
  std::istringstream words(separated);
  std::vector<std::pair<Value, int64_t>> parsed;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return false;
    const auto found = Table().find(word.substr(0, equals));
    char* end = nullptr;
    const int64_t value = std::strtoll(word.c_str() + equals + 1, &end, 10);
    if (found == Table().end() || end == word.c_str() + equals + 1 || *end != '\0' || value < 0) {
      return false;
    }
    parsed.emplace_back(found->second, value);
  }
  for (const auto& [member, value] : parsed) this->*member = value;
  return true;
}

Settings& settings() {
  static Settings* const made = [] {
    auto* from_environment = new Settings;
    const char* pairs = std::getenv("PRETEND_ACCELERATOR");
    if (pairs != nullptr && !from_environment->Set(pairs)) {
      std::fprintf(stderr, "PRETEND_ACCELERATOR: cannot parse \"%s\"\n", pairs);
      std::abort();
    }
    return from_environment;
  }();
  return *made;
}

Counters& counters() {
  static auto* const made = new Counters;
  return *made;
}

bool Strikes(std::atomic<int64_t>* fault, bool lasting) {
  int64_t left = fault->load();
  while (left > 0) {
    const int64_t next = left > 1 || !lasting ? left - 1 : left;
    if (!fault->compare_exchange_weak(left, next)) continue;
    return left == 1;
  }
  return false;
}

}  // namespace pretend_accelerator

int PretendAcceleratorSet(const char* pairs) {
  return pretend_accelerator::settings().Set(pairs) ? 1 : 0;
}

void PretendAcceleratorCount(PretendAcceleratorCounters* counters) {
  const pretend_accelerator::Counters& now = pretend_accelerator::counters();
  *counters = {now.dtoh_copies, now.dtoh_bytes,      now.htod_copies,
               now.htod_bytes,  now.dtod_copies,     now.dtod_bytes,
               now.kernels,     now.allocated_bytes, now.pending};
}
