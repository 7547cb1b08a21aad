#include "settings.h"

#include <rdma/fabric.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>

namespace faulty_libfabric {
namespace {

bool ParseNumber(const std::string& text, uint64_t low, uint64_t high, uint64_t& number) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos ||
      text.size() > 19) {
    return false;
  }
  const uint64_t parsed = std::strtoull(text.c_str(), nullptr, 10);
  if (parsed < low || parsed > high) return false;
  number = parsed;
  return true;
}

std::vector<std::string> Split(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  size_t at = 0;
  while ((at = text.find_first_not_of(separators, at)) != std::string::npos) {
    const size_t end = text.find_first_of(separators, at);
    parts.push_back(text.substr(at, end == std::string::npos ? end : end - at));
    at = end == std::string::npos ? text.size() : end;
  }
  return parts;
}

bool ParseMode(const std::string& text, int& mode) {
  static const std::map<std::string, int> kBits = {{"prov_key", FI_MR_PROV_KEY},
                                                   {"virt_addr", FI_MR_VIRT_ADDR},
                                                   {"local", FI_MR_LOCAL},
                                                   {"allocated", FI_MR_ALLOCATED},
                                                   {"endpoint", FI_MR_ENDPOINT}};
  int parsed = 0;
  for (const std::string& name : Split(text, "+")) {
    const auto bit = kBits.find(name);
    if (bit == kBits.end()) return false;
    parsed |= bit->second;
  }
  mode = parsed;
  return true;
}

bool ParseVersion(const std::string& text, std::optional<uint32_t>& version) {
  const std::vector<std::string> parts = Split(text, ".");
  uint64_t major = 0;
  uint64_t minor = 0;
  if (parts.size() != 2 || !ParseNumber(parts[0], 1, 0x7fff, major) ||
      !ParseNumber(parts[1], 0, 0xffff, minor)) {
    return false;
  }
  version = FI_VERSION(static_cast<uint32_t>(major), static_cast<uint32_t>(minor));
  return true;
}

bool ParseNumbers(const std::string& text, std::vector<uint64_t>& numbers) {
  std::vector<uint64_t> parsed;
  for (const std::string& part : Split(text, "+")) {
    if (!ParseNumber(part, 0, 10'000, parsed.emplace_back())) return false;
  }
  numbers = parsed;
  return true;
}

template <typename T>
bool ParseChoice(const std::string& text, const std::map<std::string, T>& choices, T& chosen) {
  const auto found = choices.find(text);
  if (found == choices.end()) return false;
  chosen = found->second;
  return true;
}

using Setter = std::function<bool(const std::string&, Settings&)>;

Setter Number(uint64_t Settings::* field, uint64_t low = 0, uint64_t high = INT64_MAX) {
  return [=](const std::string& value, Settings& settings) {
    return ParseNumber(value, low, high, settings.*field);
  };
}

Setter Limit(std::optional<uint64_t> Settings::* field, uint64_t low) {
  return [=](const std::string& value, Settings& settings) {
    uint64_t number = 0;
    if (!ParseNumber(value, low, INT64_MAX, number)) return false;
    settings.*field = number;
    return true;
  };
}

template <typename T>
Setter Choice(T Settings::* field, std::map<std::string, T> choices) {
  return [=](const std::string& value, Settings& settings) {
    return ParseChoice(value, choices, settings.*field);
  };
}

const std::map<std::string, Setter>& Setters() {
  constexpr uint64_t kLongestUs = 60'000'000;
  static const auto* setters = new std::map<std::string, Setter>{
      {"order",
       Choice<Order>(&Settings::order, {{"provider", Order::kProvider}, {"none", Order::kNone}})},
      {"delay_us", Number(&Settings::delay_us, 0, kLongestUs)},
      {"seed", Number(&Settings::seed)},
      {"cq_data", Choice<uint64_t>(&Settings::cq_data, {{"0", 0}, {"4", 4}, {"8", 8}})},
      {"rma_event", Choice<bool>(&Settings::rma_event, {{"on", true}, {"off", false}})},
      {"writedata", Choice<bool>(&Settings::writedata, {{"on", true}, {"off", false}})},
      {"wait", Choice<Wait>(&Settings::wait, {{"fd", Wait::kDescriptor},
                                              {"stuck", Wait::kStuck},
                                              {"remote", Wait::kRemote},
                                              {"none", Wait::kNone}})},
      {"max_msg", Limit(&Settings::max_msg, 1)},
      {"tx_size", Limit(&Settings::tx_size, 1)},
      {"provider",
       [](const std::string& value, Settings& settings) {
         settings.providers = Split(value, "+");
         return true;
       }},
      {"nics", [](const std::string& value,
                  Settings& settings) { return ParseNumbers(value, settings.nics); }},
      {"direct", Choice<bool>(&Settings::direct, {{"1", true}, {"0", false}})},
      {"no_provider", Choice<bool>(&Settings::no_provider, {{"1", true}, {"0", false}})},
      {"version", [](const std::string& value,
                     Settings& settings) { return ParseVersion(value, settings.version); }},
      {"rma_since", [](const std::string& value,
                       Settings& settings) { return ParseVersion(value, settings.rma_since); }},
      {"mr", [](const std::string& value,
                Settings& settings) { return ParseMode(value, settings.mr_mode); }},
      {"mr_key_size", Number(&Settings::mr_key_size, 1, 8)},
      {"mr_fail", Number(&Settings::mr_fail)},
      {"mr_limit", Number(&Settings::mr_limit)},
      {"eagain", Number(&Settings::eagain, 0, 100)},
      {"late", Number(&Settings::late_us, 0, kLongestUs)},
      {"broken",
       [](const std::string& value, Settings& settings) {
         settings.broken = value;
         return true;
       }},
      {"lose", Number(&Settings::lose, 0, 100)},
  };
  return *setters;
}

struct State {
  std::mutex mutex;
  bool valid = true;
  std::shared_ptr<const Settings> environment;
  std::shared_ptr<const Settings> current;

  State() {
    const char* variable = std::getenv("FAULTY_LIBFABRIC");
    Settings settings;
    for (const std::string& pair : Split(variable == nullptr ? "" : variable, ", \t\n")) {
      const size_t equals = pair.find('=');
      if (equals != std::string::npos &&
          Apply(pair.substr(0, equals), pair.substr(equals + 1), settings)) {
        continue;
      }
      std::fprintf(stderr,
                   "faulty_libfabric: FAULTY_LIBFABRIC has an unknown key or bad value: %s\n",
                   pair.c_str());
      valid = false;
    }
    environment = current = std::make_shared<const Settings>(settings);
  }
};

State& Get() {
  static State* state = new State;
  return *state;
}

}  // namespace

bool Apply(const std::string& key, const std::string& value, Settings& settings) {
  const auto setter = Setters().find(key);
  return setter != Setters().end() && setter->second(value, settings);
}

std::shared_ptr<const Settings> Current() {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.current;
}

bool EnvironmentIsValid() { return Get().valid; }

bool Set(const std::string& key, const std::string& value) {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  Settings changed = *state.current;
  if (!Apply(key, value, changed)) return false;
  state.current = std::make_shared<const Settings>(changed);
  return true;
}

void ResetToEnvironment() {
  State& state = Get();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.current = state.environment;
}

}  // namespace faulty_libfabric
