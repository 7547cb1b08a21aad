// The queue pairs of a channel on further ports than that of its first one.
//
// Such a queue pair carries nothing until the active end has tested it by an empty write: packets
// may not get from one port to the other. When it fails, both ends break theirs and signal that to
// each other. Only then nothing that is still on its way can arrive any more, and each end repeats
// on the first queue pair what has not ended. From time to time, and when a port becomes active,
// the active end offers a new queue pair. It is connected, tested, and used again.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/log.h"
#include "fabric/verbs/channel.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr Nanos kFirstDelay = 1 * kSecond;
constexpr Nanos kLongestDelay = 60 * kSecond;

}  // namespace

void VerbsChannel::BeginRails() {
  states_.resize(pairs_.size());
  for (size_t i = 0; i < pairs_.size(); ++i) {
    states_[i].delay = kFirstDelay;
    if (IsFurther(i)) states_[i].phase = PairState::Phase::kUntested;
    pairs_[i]->set_takes_shares(!IsFurther(i));
  }
}

void VerbsChannel::TestPair(size_t i) {
  Work nothing;
  nothing.signaled = true;
  pairs_[i]->Push(nothing);
  Pump();
}

// Returns false if the channel must be broken instead.
bool VerbsChannel::FailPair(size_t i, const Status& reason) {
  if (!IsFurther(i) || state_.load() != State::kConnected) return false;
  PairState& state = states_[i];
  const Nanos now = Now();
  switch (state.phase) {
    case PairState::Phase::kFailed:
    case PairState::Phase::kDown:
      return true;
    case PairState::Phase::kOffered:
      state.phase = PairState::Phase::kDown;
      return true;
    case PairState::Phase::kUntested:
    case PairState::Phase::kUp:
      break;
  }
  Log(LogLevel::kWarning, "verbs: the channel " + route_ + " continues without " +
                              pairs_[i]->adapter()->Name() + ": " + reason.message());
  pairs_[i]->set_takes_shares(false);
  pairs_[i]->adapter()->NoteFailure(now);
  state.waiting = pairs_[i]->TakeWaiting();
  state.unfinished.clear();
  state.peer_down = false;
  state.phase = PairState::Phase::kFailed;
  state.due = now + kFlushTimeout;
  pairs_[i]->Break();
  SendPairDown(i, /*answer=*/true);
  Attend();
  return true;
}

void VerbsChannel::SendPairDown(size_t i, bool answer) {
  pairs_.front()->PushFirst(outbox_.Empty(Immediate::PairDown(i, answer)));
  Pump();
}

// Returns true if the completion is dealt with. `known`: it is that of `work`.
bool VerbsChannel::OnPairCompletion(size_t i, const ibv_wc& completion, const Work& work,
                                    bool known) {
  PairState& state = states_[i];
  if (completion.status == IBV_WC_SUCCESS) {
    if (known && state.phase == PairState::Phase::kUntested && !passive_) BringUp(i);
    if (state.phase == PairState::Phase::kFailed) SettlePair(i, Now());
    return false;
  }
  if (!known) return true;  // of a queue pair that was replaced
  if (state.phase != PairState::Phase::kFailed) {
    if (!MayBeThePort(completion.status)) return false;
    const Status reason = CompletionError(completion.status, completion.vendor_err, "a transfer",
                                          pairs_[i]->adapter()->Name());
    if (!FailPair(i, reason)) return false;
  }
  state.unfinished.push_back(work);
  SettlePair(i, Now());
  return true;
}

// Ends the phase kFailed if it is over.
void VerbsChannel::SettlePair(size_t i, Nanos now) {
  PairState& state = states_[i];
  const bool late = now > state.due;
  if (state.phase != PairState::Phase::kFailed || !(pairs_[i]->Drained() || late)) return;
  if (!state.peer_down) {
    if (now > state.due + device_->keepalive()) {
      BreakLocked(Status(Code::kUnavailable, "the peer does not close a queue pair that failed"));
    }
    return;
  }
  std::vector<Work> unfinished = std::move(state.unfinished);
  // A card that died flushes nothing, nor does it do anything of it.
  for (Work& work : pairs_[i]->TakePosted()) unfinished.push_back(std::move(work));
  for (Work& work : state.waiting) unfinished.push_back(std::move(work));
  state.unfinished.clear();
  state.waiting.clear();
  for (const Work& work : unfinished) {
    if (work.kind == Work::Kind::kBind) windows_.OnBound(work.window);
  }
  windows_.DropAll(i);
  state.phase = PairState::Phase::kDown;
  state.due = now + state.delay;
  device_->ProbeAt(tag_, state.due);
  const Status repeated =
      transfers_.Repeat(i, unfinished, &device_->memory(), pairs_.front().get());
  if (!repeated.ok()) BreakLocked(repeated);
  Attend();
}

Status VerbsChannel::SendPairRecord(RecordKind kind, size_t i) {
  const PairRecord record = {static_cast<uint32_t>(i), pairs_[i]->number(), pairs_[i]->first_psn()};
  const iovec part = {const_cast<PairRecord*>(&record), sizeof(record)};
  return AddRecord(kind, &part, 1, 0, /*signaled=*/true);
}

Status VerbsChannel::MakePair(size_t i) {
  Adapter* adapter = pairs_[i]->adapter();
  if (!adapter->active()) return Status(Code::kUnavailable, adapter->Name() + " is not active");
  auto made = std::make_unique<QueuePair>(adapter, pairs_[i]->tag(), pairs_[i]->sequence());
  RDMA_RETURN_IF_ERROR(made->Create(depth_, 0));
  pairs_[i] = std::move(made);
  return OkStatus();
}

void VerbsChannel::OfferPair(size_t i, Nanos now) {
  PairState& state = states_[i];
  state.due = now + state.delay;
  state.delay = std::min(2 * state.delay, kLongestDelay);
  device_->ProbeAt(tag_, state.due);
  if (!MakePair(i).ok() || !SendPairRecord(RecordKind::kPairOffer, i).ok()) return;
  state.phase = PairState::Phase::kOffered;
}

Status VerbsChannel::HandlePairRecord(RecordKind kind, std::string_view bytes) {
  PairRecord record;
  if (bytes.size() == sizeof(record)) std::memcpy(&record, bytes.data(), sizeof(record));
  if (bytes.size() != sizeof(record) || record.index >= pairs_.size() || !IsFurther(record.index)) {
    return Status(Code::kDataLoss, "a record about a queue pair that does not exist");
  }
  PairState& state = states_[record.index];
  switch (kind) {
    case RecordKind::kPairOffer:
      return HandleOffer(record);
    case RecordKind::kPairAnswer:
      HandleAnswer(record);
      return OkStatus();
    default:
      if (passive_ && state.phase == PairState::Phase::kUntested) {
        transfers_.ForgetPair(record.index);  // announced before it failed
        BringUp(record.index);
      }
      if (!passive_ && state.phase == PairState::Phase::kDown) OfferPair(record.index, Now());
      return OkStatus();
  }
}

Status VerbsChannel::HandlePairDown(const Immediate& signal) {
  const size_t i = signal.units;
  if (i >= states_.size() || !IsFurther(i)) {
    return Status(Code::kDataLoss, "a queue pair that does not exist is broken");
  }
  if (state_.load() != State::kConnected) return OkStatus();
  FailPair(i, Status(Code::kUnavailable, "the peer has left it"));
  if (signal.batches != 0) SendPairDown(i, /*answer=*/false);
  states_[i].peer_down = true;
  SettlePair(i, Now());
  return OkStatus();
}

Status VerbsChannel::HandleOffer(const PairRecord& offer) {
  const size_t i = offer.index;
  PairState& state = states_[i];
  if (!passive_ || state.phase == PairState::Phase::kUp ||
      state.phase == PairState::Phase::kOffered) {
    return Status(Code::kDataLoss, "an offer of a queue pair at a wrong time");
  }
  ChannelAddress::QueuePair& target = peer_.queue_pairs[targets_[i]];
  target.number = offer.number;
  target.first_psn = offer.first_psn;
  const bool taken = state.phase != PairState::Phase::kFailed && MakePair(i).ok() &&
                     pairs_[i]->Connect(peer_, targets_[i]).ok();
  if (taken) state.phase = PairState::Phase::kUntested;
  if (!taken && state.phase == PairState::Phase::kUntested) state.phase = PairState::Phase::kDown;
  if (taken) return SendPairRecord(RecordKind::kPairAnswer, i);
  SendPairDown(i, /*answer=*/false);  // declines
  return OkStatus();
}

void VerbsChannel::HandleAnswer(const PairRecord& answer) {
  const size_t i = answer.index;
  PairState& state = states_[i];
  if (state.phase != PairState::Phase::kOffered) return;
  ChannelAddress::QueuePair& target = peer_.queue_pairs[targets_[i]];
  target.number = answer.number;
  target.first_psn = answer.first_psn;
  if (!pairs_[i]->Connect(peer_, targets_[i]).ok()) {
    state.phase = PairState::Phase::kDown;
    return;
  }
  transfers_.ForgetPair(i);  // announced before it failed
  state.phase = PairState::Phase::kUntested;
  TestPair(i);
}

void VerbsChannel::BringUp(size_t i) {
  PairState& state = states_[i];
  const bool again = state.delay > kFirstDelay;
  state.phase = PairState::Phase::kUp;
  state.delay = kFirstDelay;
  pairs_[i]->set_takes_shares(true);
  Log(again ? LogLevel::kInfo : LogLevel::kDebug,
      "verbs: the channel " + route_ + " also uses " + pairs_[i]->adapter()->Name());
  if (!passive_) SendPairRecord(RecordKind::kPairUp, i).IgnoreError();
  AnnounceAgain(i);
}

// Shares with the peer, for queue pair `i`, all regions that it may already access.
void VerbsChannel::AnnounceAgain(size_t i) {
  for (const auto& [key, shared] : shared_) {
    Registrations of_pairs;
    for (const auto& pair : pairs_) {
      of_pairs.push_back(pair->takes_shares() ? shared.memory[pair->port()] : nullptr);
    }
    // A region that cannot be shared goes by the other queue pairs.
    if (!windows_.MakeOne(key, i, pairs_.size(), of_pairs[i]).ok()) continue;
    BindWindow(key, i);
    SendRegion(shared.record, of_pairs).IgnoreError();
  }
}

void VerbsChannel::AdvanceRails(Nanos now) {
  for (size_t i = 0; i < states_.size() && Serving(state_.load()); ++i) {
    SettlePair(i, now);
    if (!passive_ && states_[i].phase == PairState::Phase::kDown && now >= states_[i].due)
      OfferPair(i, now);
  }
  Pump();
}

void VerbsChannel::OnPort(const Adapter& port, bool active, const Status& reason) {
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) return;
  for (size_t i = 1; i < pairs_.size(); ++i) {
    if (pairs_[i]->adapter() != &port) continue;
    if (!active) {
      FailPair(i, reason);
    } else if (states_[i].phase == PairState::Phase::kDown) {
      if (passive_) SendPairRecord(RecordKind::kPairUp, i).IgnoreError();
      if (!passive_) OfferPair(i, Now());
    }
  }
}

void VerbsChannel::OnPortFailed(const Adapter& port, const Status& reason) {
  std::lock_guard<std::mutex> lock(mu_);
  if (pairs_.empty()) return BreakLocked(reason);  // not connected: the next one does without it
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (pairs_[i]->adapter() == &port && !FailPair(i, reason)) return BreakLocked(reason);
  }
}

void VerbsChannel::OnPairFailed(uint32_t tag, const Status& reason) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = std::find_if(pairs_.begin(), pairs_.end(),
                                  [tag](const auto& pair) { return pair->tag() == tag; });
  if (found == pairs_.end()) return;
  if (!FailPair(static_cast<size_t>(found - pairs_.begin()), reason)) BreakLocked(reason);
}

}  // namespace rdma_transport::fabric::verbs
