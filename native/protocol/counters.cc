#include "protocol/counters.h"

namespace rdma_transport {

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsOfWord(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Keeps a number that is part of a word, as in "mlx5_0".
std::string WithoutNumbers(const std::string& text) {
  std::string result;
  bool in_word = false;
  for (const char c : text.substr(0, NamedCounter::kLongestName)) {
    in_word = IsOfWord(c) || (in_word && IsDigit(c));
    if (in_word || !IsDigit(c)) {
      result += c;
    } else if (result.empty() || result.back() != 'N') {
      result += 'N';
    }
  }
  return result;
}

}  // namespace

void NamedCounter::Add(const std::string& name) {
  const std::string key = WithoutNumbers(name);
  std::lock_guard<std::mutex> lock(mu_);
  const auto known = counts_.find(key);
  if (known != counts_.end()) {
    ++known->second;
  } else {
    ++counts_[counts_.size() < kMaxNames ? key : kOther];
  }
}

const char* ModeName(Mode mode) {
  switch (mode) {
    case Mode::kStatic:
      return "static";
    case Mode::kDynamic:
      return "dynamic";
    case Mode::kInline:
      return "inline";
    case Mode::kGrpc:
      return "grpc";
  }
  return "unknown";
}

Counters& GlobalCounters() {
  static auto* counters = new Counters;
  return *counters;
}

}  // namespace rdma_transport
