// What FAULTY_LIBFABRIC and faulty_libfabric_set() say. control.h lists the keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace faulty_libfabric {

enum class Order { kProvider, kNone };
enum class Wait { kDescriptor, kStuck, kRemote, kNone };

struct Settings {
  Order order = Order::kProvider;
  uint64_t delay_us = 1000;
  uint64_t seed = 1;
  uint64_t cq_data = 8;
  bool rma_event = true;
  bool writedata = true;
  Wait wait = Wait::kDescriptor;
  std::optional<uint64_t> max_msg;
  std::optional<uint64_t> tx_size;
  std::vector<std::string> providers;
  std::vector<uint64_t> nics;
  bool direct = false;
  bool no_provider = false;
  std::optional<uint32_t> version;
  std::optional<uint32_t> rma_since;
  int mr_mode = 0;
  uint64_t mr_key_size = 8;
  uint64_t mr_fail = 0;
  uint64_t mr_limit = 0;
  uint64_t eagain = 0;
  uint64_t late_us = 0;
  std::string broken;
  uint64_t lose = 0;
};

// Sets one key. False leaves `settings` as it was.
bool Apply(const std::string& key, const std::string& value, Settings& settings);

std::shared_ptr<const Settings> Current();

// Whether FAULTY_LIBFABRIC was understood.
bool EnvironmentIsValid();

// Replaces one key of the current settings.
bool Set(const std::string& key, const std::string& value);
void ResetToEnvironment();

}  // namespace faulty_libfabric
