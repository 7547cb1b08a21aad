// Calls that wait for long, and members that do not answer.

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "collectives/named_engine.h"

namespace rdma_transport::collectives {
namespace {

constexpr size_t kMaxListed = 5;

std::string Seconds(Nanos time) {
  return time < 10 * kSecond ? std::to_string(time / kMillisecond) + " ms"
                             : std::to_string(time / kSecond) + " s";
}

// Of a thread that runs collectives.
thread_local NamedEngine* engine_of_thread = nullptr;

}  // namespace

// "rank 3", or "ranks 3, 4"
std::string NamedEngine::RanksText(const std::vector<int>& ranks) const {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int& rank : ranks) {
    const auto place = static_cast<size_t>(rank);
    text += (&rank == ranks.data() ? " " : ", ") +
            std::to_string(place < options_.ranks.size() ? options_.ranks[place] : rank);
  }
  return text;
}

Status NamedEngine::LateStatus(const std::string& name, Nanos since,
                               const std::vector<int>& missing) const {
  return Status(Code::kDeadlineExceeded, "'" + name + "' has waited for " + Seconds(Now() - since) +
                                             ": " + RanksText(missing) + " did not call it");
}

void NamedEngine::CheckStalls() {
  const Nanos now = Now();
  if (waiting_.empty() && joins_.empty()) {
    next_check_ = INT64_MAX;
    return;
  }
  if (now < next_check_) return;
  next_check_ = INT64_MAX;
  // A remote member that is gone may not have said so.
  Mesh* const mesh = group_->mesh();
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (!mesh->Remote(rank)) continue;
    mesh->CheckLost(rank).IgnoreError();  // which AnyLost() says
    next_check_ = now + kCheckInterval;
  }
  std::string late;
  size_t warned = 0;
  for (auto& [name, waiting] : waiting_) {
    if (waiting.announced == 0) continue;
    const Nanos warning = options_.stall_warning > 0 && !waiting.warned
                              ? waiting.since + options_.stall_warning
                              : INT64_MAX;
    const Nanos timeout = options_.stall_timeout > 0 && !waiting.withdrawn
                              ? waiting.since + options_.stall_timeout
                              : INT64_MAX;
    if (now >= warning) {
      waiting.warned = true;
      if (warned++ < kMaxListed) {
        late += (late.empty() ? "'" : "; '") + waiting.calls[0].name + "' for " +
                RanksText(table_.Missing(name));
      }
    }
    if (now >= timeout) {
      waiting.withdrawn = true;
      NamedEntry entry;
      entry.name = name;
      entry.flags = NamedEntry::kWithdrawn;
      entries_.push_back(entry);
    }
    next_check_ = std::min(
        {next_check_, now < warning ? warning : INT64_MAX, now < timeout ? timeout : INT64_MAX});
  }
  if (warned == 0) return;
  if (warned > kMaxListed) late += "; and " + std::to_string(warned - kMaxListed) + " more";
  Log(LogLevel::kWarning, "collectives have waited for " + Seconds(options_.stall_warning) +
                              " or longer for ranks that did not call them: " + late);
}

// "; pending: 'a', 'b' and 3 more", of what this member has called, or nothing.
std::string NamedEngine::PendingText() const {
  std::vector<std::string> names;
  if (running_ != nullptr) {
    for (const NamedWork& work : *running_) {
      if (!work.calls.empty()) names.push_back(work.calls[0].name);
    }
  }
  for (const auto& [key, waiting] : waiting_) {
    if (!waiting.calls.empty()) names.push_back(waiting.calls[0].name);
  }
  if (names.empty()) return "";
  std::sort(names.begin(), names.end());
  std::string text = "; pending:";
  for (size_t i = 0; i < std::min(names.size(), kMaxListed); ++i) {
    text += (i == 0 ? " '" : ", '") + names[i] + "'";
  }
  if (names.size() <= kMaxListed) return text;
  return text + " and " + std::to_string(names.size() - kMaxListed) + " more";
}

void NamedEngine::WatchFrom(Nanos since) {
  if (options_.stall_warning > 0) {
    next_check_ = std::min(next_check_, since + options_.stall_warning);
  }
  if (options_.stall_timeout > 0) {
    next_check_ = std::min(next_check_, since + options_.stall_timeout);
  }
  if (any_remote_) next_check_ = std::min(next_check_, since + kCheckInterval);
}

Patience NamedEngine::PatienceOfRun() {
  engine_of_thread = this;
  moved_ = Now();
  moved_to_ = {};
  run_warned_ = false;
  return {INT64_MAX, [] { return engine_of_thread->RunStalls(); }};
}

// Called about every kCheckInterval while a collective waits for a member. Returns whether it shall
// end.
bool NamedEngine::RunStalls() {
  const Nanos now = Now();
  std::pair<uint32_t, std::vector<int>> at(group_->step(), group_->Behind());
  if (at != moved_to_) {
    moved_to_ = std::move(at);
    moved_ = now;
    return false;
  }
  const bool ends = options_.stall_timeout > 0 && now - moved_ >= options_.stall_timeout;
  const bool warns =
      options_.stall_warning > 0 && now - moved_ >= options_.stall_warning && !run_warned_;
  if (!ends && !warns) return false;
  const std::string text = RanksText(moved_to_.second) + " did not answer for " +
                           Seconds(now - moved_) + ", in which collectives made no progress" +
                           PendingText();
  if (ends) {
    stalled_ = Status(Code::kDeadlineExceeded, text);
    group_->mesh()->Close(text);
    return true;
  }
  run_warned_ = true;
  Log(LogLevel::kWarning, text);
  return false;
}

}  // namespace rdma_transport::collectives
