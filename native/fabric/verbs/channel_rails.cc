// The queue pairs of a channel on further ports than that of its main one.
//
// Such a queue pair carries nothing until the active end has tested it by an empty write: packets
// may not get from one port to the other. When it fails, both ends break theirs and signal that to
// each other. Only then nothing that is still on its way can arrive any more, and each end repeats
// on the main queue pair what has not ended. From time to time, and when a port becomes active, the
// active end offers a new queue pair. It is connected and tested, and each end announces its rings
// and regions for it. Only when all of that has arrived, the queue pair is used again. So one that
// carries shares can also take the place of the main one.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/log.h"
#include "fabric/verbs/channel.h"
#include "fabric/verbs/errors.h"
#include "fabric/verbs/rails.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr Nanos kNever = std::numeric_limits<Nanos>::max();
constexpr Nanos kFirstDelay = 1 * kSecond;
constexpr Nanos kLongestDelay = 60 * kSecond;

}  // namespace

void VerbsChannel::BeginRails() {
  for (size_t i = 0; i < pairs_.size(); ++i) {
    states_[i].delay = kFirstDelay;
    const bool known = pairs_[i]->number() != 0 && peer_.queue_pairs[targets_[i]].number != 0;
    if (IsFurther(i)) states_[i].phase = PairState::Phase::kUntested;
    if (!known) {
      states_[i].phase = PairState::Phase::kDown;
      states_[i].due = kNever;
    }
    pairs_[i]->set_takes_shares(known && !IsFurther(i));
  }
}

// The channel connects without queue pair `i`: its port has gone down since the addresses were
// made, or does not reach the peer's. It is offered later.
void VerbsChannel::LeaveAtFirst(size_t i, const Status& reason) {
  Log(LogLevel::kInfo, "verbs: the channel " + route_ + " begins without " +
                           pairs_[i]->adapter()->Name() + ": " + reason.message());
  pairs_[i]->Break();
  states_[i].phase = PairState::Phase::kDown;
  states_[i].due = Now() + states_[i].delay;
}

// The peer has given up its end, to which windows may be bound here, before it was tested.
void VerbsChannel::LeaveUntested(size_t i) {
  pairs_[i]->Break();
  std::vector<Work> unfinished = pairs_[i]->TakePosted();
  for (Work& work : pairs_[i]->TakeWaiting()) unfinished.push_back(std::move(work));
  LeavePair(i, unfinished, Now());
}

void VerbsChannel::TestPair(size_t i) {
  Work nothing;
  nothing.signaled = true;
  pairs_[i]->Push(nothing);
  Pump();
}

// Returns false if the channel must be broken instead.
bool VerbsChannel::FailPair(size_t i, const Status& reason) {
  if (state_.load() != State::kConnected) return false;
  if (i == main_) return FailMain(reason, FindCarrier());
  if (Moving() && i == move_.to) return false;
  PairState& state = states_[i];
  const Nanos now = Now();
  switch (state.phase) {
    case PairState::Phase::kFailed:
    case PairState::Phase::kDown:
      return true;
    case PairState::Phase::kOffered:
      TryLater(i, reason.message());
      return true;
    case PairState::Phase::kConnecting:
    case PairState::Phase::kUntested:
    case PairState::Phase::kUp:
      break;
  }
  if (!IsFurther(i) && !FailMain(reason, FindCarrier())) return false;
  Log(LogLevel::kWarning, "verbs: the channel " + route_ + " continues without " +
                              pairs_[i]->adapter()->Name() + ": " + reason.message());
  pairs_[i]->set_takes_shares(false);
  pairs_[i]->adapter()->NoteFailure(now);
  state.unfinished.clear();
  state.peer_down = false;
  state.connecting.reset();
  state.phase = PairState::Phase::kFailed;
  state.due = now + kFlushTimeout;
  pairs_[i]->Break();
  SendPairDown(i, /*answer=*/true);
  Attend();
  return true;
}

void VerbsChannel::SendPairDown(size_t i, bool answer) {
  Signal(main_, Immediate::PairDown(i, answer));
}

// Returns true if the completion is dealt with. `known`: it is that of `work`.
bool VerbsChannel::OnPairCompletion(size_t i, const ibv_wc& completion, const Work& work,
                                    bool known) {
  PairState& state = states_[i];
  if (completion.status == IBV_WC_SUCCESS) {
    // A card binds windows without its peer.
    if (i == move_.to && known && work.kind != Work::Kind::kBind) move_.answered = true;
    const bool tested = known && work.kind == Work::Kind::kWrite;
    if (tested && state.phase == PairState::Phase::kUntested && !passive_) BringUp(i);
    if (state.phase == PairState::Phase::kFailed) SettlePair(i, Now());
    return false;
  }
  if (!known) return true;  // of a queue pair that was replaced
  if (state.phase != PairState::Phase::kFailed) {
    if (!MayBeThePort(completion.status)) return false;
    const bool further = IsFurther(i);
    const Status reason = CompletionError(completion.status, completion.vendor_err, NameOf(work),
                                          further ? pairs_[i]->adapter()->Name() : route_);
    if (!FailPair(i, reason)) return false;
  }
  state.unfinished.push_back(work);
  SettlePair(i, Now());
  return true;
}

// Ends the phase kFailed if it is over.
void VerbsChannel::SettlePair(size_t i, Nanos now) {
  if (i == main_) return SettleMain(now);
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
  for (Work& work : pairs_[i]->TakeWaiting()) unfinished.push_back(std::move(work));
  LeavePair(i, unfinished, now);
  // In front of the batches that wait for it.
  for (auto work = unfinished.rbegin(); work != unfinished.rend(); ++work) {
    if (!Transfers::IsRepeated(*work)) continue;
    const Status aimed = transfers_.Retarget(&*work, &device_->memory(), main_, main().port());
    if (!aimed.ok()) return BreakLocked(aimed);
    main().PushFirst(*work);
  }
  Attend();
}

// `unfinished`: what it had not ended.
void VerbsChannel::LeavePair(size_t i, const std::vector<Work>& unfinished, Nanos now) {
  PairState& state = states_[i];
  for (const Work& work : unfinished) {
    if (work.kind == Work::Kind::kBind) windows_.OnBound(work.window);
  }
  windows_.DropAll(i);
  transfers_.Leave(i);
  pairs_[i]->set_takes_shares(false);
  state.unfinished.clear();
  state.connecting.reset();
  TryAfterDelay(i, now);
}

void VerbsChannel::TryAfterDelay(size_t i, Nanos now) {
  PairState& state = states_[i];
  state.phase = PairState::Phase::kDown;
  state.due = now + state.delay;
  device_->ProbeAt(tag_, state.due);
}

bool VerbsChannel::IsLeft(size_t i) const {
  const PairState::Phase phase = states_[i].phase;
  return phase == PairState::Phase::kDown || phase == PairState::Phase::kOffered ||
         (i == main_ && Moving() && move_.reported);
}

size_t VerbsChannel::IndexOf(uint32_t tag) const {
  const auto found = std::find_if(pairs_.begin(), pairs_.end(),
                                  [tag](const auto& pair) { return pair->tag() == tag; });
  return static_cast<size_t>(found - pairs_.begin());
}

Status VerbsChannel::SendPairRecord(RecordKind kind, size_t i) {
  const ChannelAddress::Port port = AddressOf(pairs_[i]->adapter()->port());
  PairRecord record = {};
  record.index = static_cast<uint32_t>(i);
  record.number = pairs_[i]->number();
  record.first_psn = pairs_[i]->first_psn();
  record.mtu = port.mtu;
  record.read_depth = port.read_depth;
  record.lid = port.lid;
  record.ethernet = port.ethernet ? 1 : 0;
  std::memcpy(record.gid, port.gid.data(), sizeof(record.gid));
  const iovec part = {&record, sizeof(record)};
  return AddRecord(kind, &part, 1, 0, /*signaled=*/true);
}

// Fails if the port of the peer's new queue pair cannot reach the own one.
Status VerbsChannel::LearnPort(const PairRecord& record) {
  ChannelAddress::QueuePair& target = peer_.queue_pairs[targets_[record.index]];
  target.number = record.number;
  target.first_psn = record.first_psn;
  ChannelAddress::Port& port = peer_.ports[target.port];
  port.known = true;
  port.mtu = record.mtu;
  port.read_depth = record.read_depth;
  port.lid = record.lid;
  port.ethernet = record.ethernet != 0;
  std::memcpy(port.gid.data(), record.gid, sizeof(record.gid));
  return Reachable(AddressOf(pairs_[record.index]->adapter()->port()), port);
}

Status VerbsChannel::MakePair(size_t i) {
  Adapter* adapter = pairs_[i]->adapter();
  if (!adapter->active()) return Status(Code::kUnavailable, adapter->Name() + " is not active");
  auto made = std::make_shared<QueuePair>(adapter, pairs_[i]->tag(), pairs_[i]->sequence());
  RDMA_RETURN_IF_ERROR(made->Create(depth_, pairs_[i]->receives() ? depth_ + credit_receives_ : 0));
  RDMA_RETURN_IF_ERROR(made->Replenish());
  pairs_[i] = std::move(made);
  states_[i].made_anew = true;
  states_[i].arrived = states_[i].confirmed = 0;
  return OkStatus();
}

void VerbsChannel::OfferPair(size_t i, Nanos now) {
  PairState& state = states_[i];
  state.due = kNever;
  if (!pairs_[i]->adapter()->active()) return;  // OnPort() will say when it is
  state.due = now + state.delay;
  state.delay = std::min(2 * state.delay, kLongestDelay);
  device_->ProbeAt(tag_, state.due);
  Status offered = MakePair(i);
  if (offered.ok()) offered = SendPairRecord(RecordKind::kPairOffer, i);
  if (!offered.ok()) return NoteUnused(i, offered.message());
  state.phase = PairState::Phase::kOffered;
}

// Leaves queue pair `i`, which was offered, until the next attempt.
void VerbsChannel::TryLater(size_t i, const std::string& why) {
  TryAfterDelay(i, Now());
  NoteUnused(i, why);
}

// A thread connects queue pair `i`: over RoCE, the kernel waits up to a second for the peer's
// address if nobody answers.
void VerbsChannel::BeginToConnect(size_t i) {
  const auto begun = std::make_shared<Connecting>();
  begun->pair = pairs_[i];
  begun->peer = peer_;
  begun->target = targets_[i];
  states_[i].connecting = begun;
  states_[i].phase = PairState::Phase::kConnecting;
  const auto connect = [device = device_, tag = tag_, wanted = std::weak_ptr<Connecting>(begun)] {
    const auto taken = wanted.lock();
    if (taken == nullptr) return;  // left before its turn
    taken->status = taken->pair->Connect(taken->peer, taken->target);
    taken->done.store(true);
    device->Attend(tag);
    device->Wake();
  };
  device_->CallSlowly(connect);
}

void VerbsChannel::TakeConnected() {
  for (size_t i = 0; i < states_.size(); ++i) {
    PairState& state = states_[i];
    if (state.connecting == nullptr || !state.connecting->done.load()) continue;
    const Status connected = std::exchange(state.connecting, nullptr)->status;
    if (connected.ok()) {
      UseConnected(i);
      continue;
    }
    state.phase = PairState::Phase::kDown;
    if (passive_) {
      Decline(i, connected);
    } else {
      TryLater(i, connected.message());
    }
  }
}

void VerbsChannel::UseConnected(size_t i) {
  ForgetPair(i);
  states_[i].phase = PairState::Phase::kUntested;
  if (!passive_) return TestPair(i);
  const Status answered = SendPairRecord(RecordKind::kPairAnswer, i);
  if (!answered.ok()) BreakLocked(answered);
}

// The active end tries it again later.
void VerbsChannel::Decline(size_t i, const Status& reason) {
  NoteUnused(i, reason.message());
  SendPairDown(i, /*answer=*/false);
}

// Says why queue pair `i` does not return, unless the last attempt had failed for the same reason.
void VerbsChannel::NoteUnused(size_t i, const std::string& why) {
  if (std::exchange(states_[i].unused, why) == why) return;
  Log(LogLevel::kInfo, "verbs: the channel " + route_ + " still does without " +
                           pairs_[i]->adapter()->Name() + ": " + why);
}

Status VerbsChannel::HandlePairRecord(RecordKind kind, std::string_view bytes) {
  PairRecord record;
  if (bytes.size() == sizeof(record)) std::memcpy(&record, bytes.data(), sizeof(record));
  if (bytes.size() != sizeof(record) || record.index >= pairs_.size() ||
      (record.index == main_ && kind < RecordKind::kPairUp)) {
    return Status(Code::kDataLoss, "a record about a queue pair that does not exist");
  }
  if (record.index == main_) return OkStatus();  // from before it became that
  PairState& state = states_[record.index];
  switch (kind) {
    case RecordKind::kPairOffer:
      return HandleOffer(record);
    case RecordKind::kPairAnswer:
      HandleAnswer(record);
      return OkStatus();
    case RecordKind::kPairReady:
      if (!passive_ && state.phase == PairState::Phase::kUp) UsePair(record.index);
      return OkStatus();
    default:
      if (passive_ && state.phase == PairState::Phase::kUntested) BringUp(record.index);
      if (!passive_ && state.phase == PairState::Phase::kDown) OfferPair(record.index, Now());
      return OkStatus();
  }
}

Status VerbsChannel::HandlePairDown(const Immediate& signal) {
  const size_t i = signal.units;
  if (state_.load() != State::kConnected) return OkStatus();
  const bool declined = states_[i].phase == PairState::Phase::kOffered;
  const Status reason(Code::kUnavailable,
                      declined ? "the peer cannot use it; see its log" : "the peer has left it");
  if (!FailPair(i, reason)) return reason;
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
  if (state.phase == PairState::Phase::kUntested || state.phase == PairState::Phase::kConnecting) {
    LeaveUntested(i);
  }
  Status taken = LearnPort(offer);
  if (taken.ok() && state.phase == PairState::Phase::kFailed) {
    taken = Status(Code::kUnavailable, "the one that failed is still being dropped");
  }
  if (taken.ok()) taken = MakePair(i);
  if (taken.ok()) {
    BeginToConnect(i);
  } else {
    Decline(i, taken);
  }
  return OkStatus();
}

void VerbsChannel::HandleAnswer(const PairRecord& answer) {
  const size_t i = answer.index;
  PairState& state = states_[i];
  if (state.phase != PairState::Phase::kOffered) return;
  const Status reached = LearnPort(answer);
  if (!reached.ok()) return TryLater(i, reached.message());
  BeginToConnect(i);
}

// What the peer announced for queue pair `i` was for the one before.
void VerbsChannel::ForgetPair(size_t i) {
  if (!states_[i].made_anew) return;
  transfers_.ForgetPair(i);
  outbox_.ForgetPair(i);
}

// Announces the memory of this end. The passive end has received what the active end announced.
void VerbsChannel::BringUp(size_t i) {
  states_[i].phase = PairState::Phase::kUp;
  AnnounceAgain(i);
  SendPairRecord(passive_ ? RecordKind::kPairReady : RecordKind::kPairUp, i).IgnoreError();
  if (passive_) UsePair(i);
}

void VerbsChannel::UsePair(size_t i) {
  if (pairs_[i]->takes_shares()) return;
  const bool again = std::exchange(states_[i].delay, kFirstDelay) > kFirstDelay;
  pairs_[i]->set_takes_shares(true);
  states_[i].unused.clear();
  Log(again ? LogLevel::kInfo : LogLevel::kDebug,
      "verbs: the channel " + route_ + " also uses " + pairs_[i]->adapter()->Name());
}

// Returns the registrations of a region with the ports of the queue pairs by which the peer is told
// to access it; null for the others.
Registrations VerbsChannel::ByPair(const Registrations& memory) const {
  Registrations of_pairs;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const bool told = i == main_ || states_[i].phase == PairState::Phase::kUp;
    of_pairs.push_back(told ? memory[pairs_[i]->port()] : nullptr);
  }
  return of_pairs;
}

// Shares with the peer, for queue pair `i`, all regions that it may already access.
void VerbsChannel::AnnounceAgain(size_t i) {
  if (states_[i].made_anew) AnnounceRings(i);
  for (auto& [key, shared] : shared_) {
    device_->memory().Refresh(key, &shared.memory);
    const Registrations of_pairs = ByPair(shared.memory);
    // A region that cannot be shared goes by the other queue pairs.
    if (!windows_.MakeOne(key, i, pairs_.size(), of_pairs[i]).ok()) continue;
    BindWindow(key, i);
    SendRegion(shared.record, of_pairs).IgnoreError();
  }
}

// What a port sends may stay in its interface without an error: Soft-RoCE stops its retries if it
// cannot send them. What was posted to queue pair `i` then goes by the main one, or if that is the
// main one, by another, before the peer counts as silent. If there is no other, the channel breaks,
// so that both ends connect anew: the queue pair may stay like that when packets arrive again.
void VerbsChannel::LeaveIfHeld(size_t i, Nanos now) {
  PairState& state = states_[i];
  const bool is_main = i == main_;
  const bool only = is_main && FindCarrier() == kNoCarrier;
  if (Moving() || !(is_main || IsFurther(i)) || state_.load() != State::kConnected) return;
  const VerbsSettings& settings = device_->adapter().settings();
  const Nanos retries = settings.retry_timeout * (settings.retries + 1);
  Nanos limit = device_->keepalive();
  if (is_main) limit = only ? std::max(limit, 4 * retries) : std::max(limit / 2, 2 * retries);
  const uint64_t oldest = pairs_[i]->oldest();
  if (!pairs_[i]->AnswerDue() || std::exchange(state.oldest, oldest) != oldest) {
    state.since = now;
  } else if (now - state.since >= limit) {
    const Status held(Code::kUnavailable, "for " + std::to_string(limit / kMillisecond) +
                                              " ms, nothing that " + pairs_[i]->adapter()->Name() +
                                              " carries has ended or failed");
    if (!FailPair(i, held)) BreakLocked(held);
  }
}

void VerbsChannel::AdvanceRails(Nanos now) {
  for (size_t i = 0; i < states_.size() && Serving(state_.load()); ++i) {
    SettlePair(i, now);
    LeaveIfHeld(i, now);
    if (!passive_ && states_[i].phase == PairState::Phase::kDown && now >= states_[i].due)
      OfferPair(i, now);
  }
  Pump();
}

void VerbsChannel::OnPort(const Adapter& port, bool active, const Status& reason) {
  if (!Serving(state_.load())) return;  // Connect() may have the lock for long
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) return;
  for (size_t i = 0; i < pairs_.size(); ++i) {
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
  const size_t i = IndexOf(tag);
  if (i < pairs_.size() && !FailPair(i, reason)) BreakLocked(reason);
}

}  // namespace rdma_transport::fabric::verbs
