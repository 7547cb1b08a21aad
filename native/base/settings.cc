#include "base/settings.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

namespace rdma_transport {
namespace {

constexpr char kPrefix[] = "RDMA_TRANSPORT_";

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Splits "1.5 GiB" into 1.5 and "gib"; false when there is no number or it is not finite.
bool SplitNumber(const std::string& text, double* number, std::string* unit) {
  char* end = nullptr;
  *number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(*number) || *number < 0) return false;
  std::string rest(end);
  rest.erase(0, rest.find_first_not_of(' '));
  rest.erase(rest.find_last_not_of(' ') + 1);
  *unit = Lower(rest);
  return true;
}

template <typename T>
Status ParseWithUnits(const std::string& text, const std::map<std::string, double>& units,
                      const char* example, T* value) {
  double number = 0;
  std::string unit;
  const Status bad(Code::kInvalidArgument, "'" + text + "' is not " + example);
  if (!SplitNumber(text, &number, &unit)) return bad;
  const auto factor = units.find(unit);
  if (factor == units.end()) return bad;
  const double product = number * factor->second;
  if (product >= 9.2e18) return bad;
  *value = static_cast<T>(product);
  return OkStatus();
}

SettingRow Choice(std::string name, std::string default_text, std::string meaning,
                  std::vector<std::pair<std::string, std::function<void(Settings*)>>> choices) {
  std::string type;
  for (const auto& choice : choices) type += (type.empty() ? "" : "|") + choice.first;
  auto apply = [type, choices = std::move(choices)](const std::string& text, Settings* settings) {
    for (const auto& choice : choices) {
      if (Lower(text) == choice.first) {
        choice.second(settings);
        return OkStatus();
      }
    }
    return Status(Code::kInvalidArgument, "'" + text + "' is not one of " + type);
  };
  return {kPrefix + std::move(name), type, std::move(default_text), std::move(meaning), apply};
}

SettingRow Size(std::string name, std::string default_text, std::string meaning,
                uint64_t Settings::* field) {
  auto apply = [field](const std::string& text, Settings* settings) {
    return ParseSize(text, &(settings->*field));
  };
  return {kPrefix + std::move(name), "size", std::move(default_text), std::move(meaning), apply};
}

SettingRow Duration(std::string name, std::string default_text, std::string meaning,
                    Nanos Settings::* field) {
  auto apply = [field](const std::string& text, Settings* settings) {
    return ParseDuration(text, &(settings->*field));
  };
  return {kPrefix + std::move(name), "duration", std::move(default_text), std::move(meaning),
          apply};
}

std::vector<SettingRow> MakeTable() {
  std::vector<SettingRow> rows;
  rows.push_back(Choice("FABRIC", "auto",
                        "how tensors reach peers; auto takes the best that reaches each peer",
                        {{"auto", [](Settings* s) { s->fabric = FabricChoice::kAuto; }},
                         {"shm", [](Settings* s) { s->fabric = FabricChoice::kShm; }},
                         {"verbs", [](Settings* s) { s->fabric = FabricChoice::kVerbs; }},
                         {"grpc", [](Settings* s) { s->fabric = FabricChoice::kGrpc; }}}));
  rows.push_back(Choice("FALLBACK", "allow",
                        "forbid: a tensor that the fabric cannot carry is an error, not gRPC's",
                        {{"allow", [](Settings* s) { s->allow_fallback = true; }},
                         {"forbid", [](Settings* s) { s->allow_fallback = false; }}}));
  rows.push_back(Size("ARENA_SIZE", "auto",
                      "most memory the arena may take; auto: three quarters of what this process "
                      "may use",
                      &Settings::arena_size));
  auto parse_arena_size = rows.back().apply;
  rows.back().type = "auto|size";
  rows.back().apply = [parse_arena_size](const std::string& text, Settings* settings) {
    if (Lower(text) != "auto") return parse_arena_size(text, settings);
    settings->arena_size = 0;
    return OkStatus();
  };
  rows.push_back(Size("ARENA_MIN_TENSOR", "4KiB",
                      "a task's tensors of at least this size are allocated in the arena",
                      &Settings::arena_min_tensor));
  rows.push_back(Size("INLINE_MAX", "4KiB",
                      "tensors of at most this size ride in the notification (64KiB at most)",
                      &Settings::inline_max));
  rows.push_back(Choice("ZERO_COPY", "on",
                        "off: a consumer copies what it could have read in the producer's memory",
                        {{"on", [](Settings* s) { s->zero_copy = true; }},
                         {"off", [](Settings* s) { s->zero_copy = false; }}}));
  rows.push_back(Choice("STATIC", "on",
                        "off: no tensor gets a place before it is sent; each needs a descriptor",
                        {{"on", [](Settings* s) { s->static_edges = true; }},
                         {"off", [](Settings* s) { s->static_edges = false; }}}));
  rows.push_back(Duration("SPIN", "50us",
                          "how long the polling thread spins after the last message before it "
                          "sleeps",
                          &Settings::spin));
  rows.push_back(Duration("PEER_TIMEOUT", "8s",
                          "a peer that is waited for and silent this long counts as gone",
                          &Settings::peer_timeout));
  rows.push_back(Duration("CONNECT_TIMEOUT", "10s",
                          "how long the first contact with a peer may take",
                          &Settings::connect_timeout));
  rows.push_back(Choice("LOG_LEVEL", "info", "the least severe line that is logged",
                        {{"debug", [](Settings* s) { s->log_level = LogLevel::kDebug; }},
                         {"info", [](Settings* s) { s->log_level = LogLevel::kInfo; }},
                         {"warning", [](Settings* s) { s->log_level = LogLevel::kWarning; }},
                         {"error", [](Settings* s) { s->log_level = LogLevel::kError; }},
                         {"off", [](Settings* s) { s->log_level = LogLevel::kOff; }}}));
  // Read by the autoload guard before this library exists in the process.
  rows.push_back(Choice("DISABLE", "0", "1: the plugin is not loaded at all",
                        {{"0", [](Settings*) {}},
                         {"1", [](Settings*) {}},
                         {"false", [](Settings*) {}},
                         {"true", [](Settings*) {}}}));
  return rows;
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

std::string NearestName(const std::string& name) {
  const auto& rows = SettingsTable();
  const auto nearest =
      std::min_element(rows.begin(), rows.end(), [&](const SettingRow& a, const SettingRow& b) {
        return EditDistance(name, a.name) < EditDistance(name, b.name);
      });
  return nearest->name;
}

}  // namespace

const std::vector<SettingRow>& SettingsTable() {
  static const auto* table = new std::vector<SettingRow>(MakeTable());
  return *table;
}

Status ParseSize(const std::string& text, uint64_t* bytes) {
  static const auto* units = new std::map<std::string, double>{{"", 1},
                                                               {"b", 1},
                                                               {"k", 1024.0},
                                                               {"kb", 1e3},
                                                               {"kib", 1024.0},
                                                               {"m", 1048576.0},
                                                               {"mb", 1e6},
                                                               {"mib", 1048576.0},
                                                               {"g", 1073741824.0},
                                                               {"gb", 1e9},
                                                               {"gib", 1073741824.0},
                                                               {"t", 1099511627776.0},
                                                               {"tb", 1e12},
                                                               {"tib", 1099511627776.0}};
  return ParseWithUnits(text, *units, "a size such as 4096, 64KiB or 1.5GB", bytes);
}

Status ParseDuration(const std::string& text, Nanos* duration) {
  static const auto* units = new std::map<std::string, double>{
      {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}};
  double number = 0;
  std::string unit;
  if (SplitNumber(text, &number, &unit) && number == 0 && unit.empty()) {
    *duration = 0;
    return OkStatus();
  }
  return ParseWithUnits(text, *units, "a duration with its unit, such as 20us, 500ms or 8s",
                        duration);
}

Status LoadSettings(char** environment, Settings* settings, std::vector<std::string>* warnings) {
  std::map<std::string, std::string> given;
  const std::string prefix = kPrefix;
  for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos && text.compare(0, prefix.size(), prefix) == 0) {
      given[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  for (const SettingRow& row : SettingsTable()) {
    const auto found = given.find(row.name);
    const std::string text = found == given.end() ? row.default_text : found->second;
    if (found != given.end()) given.erase(found);
    const Status status = row.apply(text, settings);
    if (!status.ok()) return Status(status.code(), row.name + ": " + status.message());
  }
  if (settings->inline_max > 64 * 1024) {
    return Status(Code::kInvalidArgument,
                  "RDMA_TRANSPORT_INLINE_MAX: at most 64KiB can ride in a notification");
  }
  if (settings->peer_timeout <= 0 || settings->connect_timeout <= 0) {
    return Status(Code::kInvalidArgument,
                  "RDMA_TRANSPORT_PEER_TIMEOUT and RDMA_TRANSPORT_CONNECT_TIMEOUT must be above 0");
  }
  for (const auto& [name, value] : given) {
    warnings->push_back(name + " is not a known setting; did you mean " + NearestName(name) + "?");
  }
  return OkStatus();
}

}  // namespace rdma_transport
