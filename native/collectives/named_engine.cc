#include "collectives/named_engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/quiet_thread.h"

namespace rdma_transport::collectives {
namespace {

// Entries in the first message of a round. Others need a second one.
constexpr size_t kFirstEntries = 7;
constexpr size_t kMaxEntries = 2048;
constexpr size_t kHeader = sizeof(NamedEntry);
// How long the call that runs may take to end when the member closes.
constexpr Nanos kCloseTimeout = kSecond;

}  // namespace

NamedEngine::NamedEngine(std::unique_ptr<Group> group, NamedOptions options)
    : group_(std::move(group)),
      options_(std::move(options)),
      owner_(getpid()),
      table_(group_->size()),
      execution_(group_.get(), options_.ranks, [this](NamedWork* work) { EndWork(work); }) {
  for (int rank = 0; rank < group_->size(); ++rank) {
    any_remote_ |= group_->mesh()->Remote(rank);
  }
  group_->mesh()->NameRanks(options_.ranks);
  try {
    thread_ = QuietThread("rdma_named", [this] { Loop(); });
  } catch (const std::system_error& error) {
    exited_ = true;
    ended_ = Status(Code::kResourceExhausted,
                    std::string("cannot start a thread for collectives: ") + error.what());
  }
}

bool NamedEngine::Ours() const { return getpid() == owner_; }

void NamedEngine::Start(NamedCall call) {
  Status refused;
  if (!Ours()) {
    refused = Status(Code::kFailedPrecondition,
                     "the group belongs to the process that forked this one; connect one here");
  } else {
    std::lock_guard<std::mutex> lock(mu_);
    refused = ended_;
    if (refused.ok()) {
      if (!call.joins) {
        Use& use = in_use_[KeyOf(call.name)];
        call.twice = use.calls++ > 0;
        use.twice |= call.twice;
      }
      started_.push_back(std::move(call));
      news_.store(true);
    }
  }
  if (refused.ok()) {
    group_->Wake();
  } else if (call.done) {
    call.done(refused, {});
  }
}

void NamedEngine::Finish(NamedCall* call, const Status& status, const NamedResult& result) {
  bool twice = false;
  if (!call->joins) {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = in_use_.find(KeyOf(call->name));
    twice = found->second.twice;
    if (--found->second.calls == 0) in_use_.erase(found);
  }
  call->keeper.reset();  // so that the arrays have no other user
  if (!call->done) return;
  // Which of the two the others mean is not known: neither result can be trusted.
  if (twice && status.ok()) {
    call->done(execution_.UsedTwice(group_->rank(), call->name), {});
  } else {
    call->done(status, result);
  }
}

void NamedEngine::Close(const std::string& reason) {
  if (!Ours()) return;
  std::lock_guard<std::mutex> closes(close_mu_);
  bool clean = false;
  {
    std::unique_lock<std::mutex> lock(mu_);
    if (ended_.ok()) ended_ = Status(Code::kCancelled, reason);
    ending_ = true;
    news_.store(true);
    group_->Wake();
    clean = changed_.wait_for(lock, std::chrono::nanoseconds(kCloseTimeout),
                              [this] { return exited_; });
  }
  // The others must have received what this member has announced.
  if (clean && failed_.ok()) group_->mesh()->Drain(nullptr).IgnoreError();
  group_->mesh()->Close(reason);
  if (thread_.joinable()) thread_.join();
}

void NamedEngine::Loop() {
  Status status;
  while (true) {
    const bool waits = !waiting_.empty() || !joins_.empty();
    group_->WaitForStart(next_check_, [&] {
      return news_.load() || !entries_.empty() || (waits && group_->AnyLost());
    });
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (ending_) {
        status = ended_;
        break;
      }
    }
    TakeStarted();
    CheckStalls();
    const bool lost = group_->AnyLost() && (!waiting_.empty() || !joins_.empty());
    if (entries_.empty() && !lost && !group_->Ahead()) continue;
    status = Round();
    if (!status.ok()) {
      failed_ = status;
      status = EndOf(status);
      break;
    }
  }
  EndAll(status);
  std::lock_guard<std::mutex> lock(mu_);
  exited_ = true;
  changed_.notify_all();
}

void NamedEngine::TakeStarted() {
  if (!news_.load()) return;
  std::vector<NamedCall> started;
  {
    std::lock_guard<std::mutex> lock(mu_);
    started.swap(started_);
    news_.store(false);
  }
  for (NamedCall& call : started) Announce(std::move(call));
}

void NamedEngine::Announce(NamedCall call) {
  if (call.joins) {
    if (!joins_.empty()) {
      return Finish(&call, Status(Code::kInvalidArgument, "this rank has joined already"), {});
    }
    entries_.push_back(EntryOf(call, 0));
    joins_.push_back(std::move(call));
    WatchFrom(Now());
    return;
  }
  const Status valid = CheckCall(call, group_->size());
  entries_.push_back(EntryOf(
      call, (valid.ok() ? 0 : NamedEntry::kInvalid) | (call.twice ? NamedEntry::kTwice : 0)));
  Waiting& waiting = waiting_[entries_.back().name];
  if (waiting.calls.empty()) waiting.since = Now();
  WatchFrom(waiting.since);
  waiting.calls.push_back(std::move(call));
}

// All members announce what they have started, and carry out what all have.
Status NamedEngine::Round() {
  RDMA_RETURN_IF_ERROR(Exchange());
  std::vector<NamedWork> works;
  for (NamedMatch& match : table_.Take()) {
    NamedWork work;
    const Nanos since = waiting_.count(match.name) == 0 ? Now() : waiting_[match.name].since;
    work.calls = TakeCall(match);
    work.match = std::move(match);
    if (work.match.withdrawn < 0) {
      works.push_back(std::move(work));
      continue;
    }
    std::vector<int> missing;
    for (size_t rank = 0; rank < work.match.entries.size(); ++rank) {
      if (work.match.entries[rank].flags == 0) missing.push_back(static_cast<int>(rank));
    }
    if (!work.calls.empty()) work.status = LateStatus(work.calls[0].name, since, missing);
    EndWork(&work);
  }
  running_ = &works;
  const Status status = execution_.Run(&works, PatienceOfRun());
  running_ = nullptr;
  if (!status.ok()) {
    for (NamedWork& work : works) {
      work.status = EndOf(status);
      EndWork(&work);
    }
    return status;
  }
  int last = 0;
  if (table_.TakeJoin(&last)) EndJoin(last);
  return OkStatus();
}

// Removes and returns this member's call. There is none if it has joined, or others withdrew
// theirs.
std::vector<NamedCall> NamedEngine::TakeCall(const NamedMatch& match) {
  std::vector<NamedCall> taken;
  if (match.entries[static_cast<size_t>(group_->rank())].flags == 0) return taken;
  const auto found = waiting_.find(match.name);
  Waiting& waiting = found->second;
  taken.push_back(std::move(waiting.calls.front()));
  waiting.calls.pop_front();
  --waiting.announced;
  if (waiting.calls.empty()) {
    waiting_.erase(found);
  } else {
    waiting.since = Now();
    waiting.warned = waiting.withdrawn = false;
  }
  return taken;
}

// Returns what calls get that end with this error of the group.
Status NamedEngine::EndOf(const Status& status) {
  std::lock_guard<std::mutex> lock(mu_);
  if (ending_) return ended_;
  return stalled_.ok() ? status : stalled_;
}

// One all-gather of the numbers of entries and the first of them; another one if there are more.
Status NamedEngine::Exchange() {
  const auto size = static_cast<size_t>(group_->size());
  const size_t first = kHeader + kFirstEntries * sizeof(NamedEntry);
  const uint64_t count = std::min(entries_.size(), kMaxEntries);
  std::vector<NamedEntry> mine(entries_.begin(), entries_.begin() + static_cast<int64_t>(count));
  entries_.erase(entries_.begin(), entries_.begin() + static_cast<int64_t>(count));
  for (const NamedEntry& entry : mine) {
    if (!entry.has(NamedEntry::kWithdrawn) && !entry.has(NamedEntry::kJoins)) {
      ++waiting_[entry.name].announced;
    }
  }
  mine.resize(std::max<size_t>(count, kFirstEntries));
  own_.assign(kHeader, 0);
  std::memcpy(own_.data(), &count, sizeof(count));
  const auto* const bytes = reinterpret_cast<const char*>(mine.data());
  own_.insert(own_.end(), bytes, bytes + kFirstEntries * sizeof(NamedEntry));
  all_.resize(first * size);
  Call call;
  call.collective = Collective::kAllGather;
  call.count = first;
  call.input = own_.data();
  call.output = all_.data();
  RDMA_RETURN_IF_ERROR(group_->Run(call, PatienceOfRun()));
  std::vector<std::vector<NamedEntry>> announced(size);
  size_t most = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    const char* const from = all_.data() + rank * first;
    uint64_t its = 0;
    std::memcpy(&its, from, sizeof(its));
    if (its > kMaxEntries) return Status(Code::kDataLoss, "a malformed announcement");
    announced[rank].resize(its);
    const size_t here = std::min<size_t>(its, kFirstEntries);
    if (here > 0) std::memcpy(announced[rank].data(), from + kHeader, here * sizeof(NamedEntry));
    most = std::max<size_t>(most, its);
  }
  if (most > kFirstEntries) {
    const size_t more = most - kFirstEntries;
    mine.resize(most);
    all_.resize(more * size * sizeof(NamedEntry));
    call.count = more * sizeof(NamedEntry);
    call.input = reinterpret_cast<const char*>(mine.data() + kFirstEntries);
    call.output = all_.data();
    RDMA_RETURN_IF_ERROR(group_->Run(call, PatienceOfRun()));
    for (size_t rank = 0; rank < size; ++rank) {
      const size_t its = announced[rank].size();
      if (its <= kFirstEntries) continue;
      std::memcpy(announced[rank].data() + kFirstEntries,
                  all_.data() + rank * more * sizeof(NamedEntry),
                  (its - kFirstEntries) * sizeof(NamedEntry));
    }
  }
  for (size_t rank = 0; rank < size; ++rank) {
    for (const NamedEntry& entry : announced[rank]) table_.Add(static_cast<int>(rank), entry);
  }
  return OkStatus();
}

void NamedEngine::EndWork(NamedWork* work) {
  for (NamedCall& call : work->calls) Finish(&call, work->status, work->result);
  work->calls.clear();
}

void NamedEngine::EndJoin(int last) {
  NamedResult result;
  result.last = last;
  for (NamedCall& call : std::exchange(joins_, {})) Finish(&call, OkStatus(), result);
}

void NamedEngine::EndAll(const Status& status) {
  std::vector<NamedCall> calls;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (ended_.ok()) ended_ = status;
    calls.swap(started_);
  }
  for (NamedCall& call : std::exchange(joins_, {})) calls.push_back(std::move(call));
  for (auto& [name, waiting] : std::exchange(waiting_, {})) {
    for (NamedCall& call : waiting.calls) calls.push_back(std::move(call));
  }
  for (NamedCall& call : calls) Finish(&call, status, {});
}

}  // namespace rdma_transport::collectives
