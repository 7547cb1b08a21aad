// How another queue pair takes the place of the main one, which carries the notifications.
//
// An end whose main queue pair fails breaks it, and notifies the peer by a signal on a queue pair
// of another port. That may be either end; the active end then chooses which queue pair becomes the
// main one, and the passive end follows. When its own end is flushed, each end signals there how
// many batches, credits and signals had arrived from the peer. From this count on, nothing else
// counts that arrives on the broken queue pair.
//
// A queue pair of a reliable connection works in order. So the count says exactly which of the
// posted work requests have taken effect: those up to the last one that arrived, except reads. Each
// end repeats the others on the new main queue pair, in their order, with what waited behind them.
// The rings and all counters stay as they are, only the way to them is another one. A write that is
// repeated was not followed by a notification that arrived, so the peer does not use the memory
// yet.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "fabric/verbs/channel.h"

namespace rdma_transport::fabric::verbs {
namespace {

// How long the peer's card may take to answer on another port. A peer that died does not. Time
// counts only while the polling thread runs, by its probes.
constexpr Nanos kAnswerInterval = 100 * kMillisecond;
constexpr int kMaxUnanswered = 10;

}  // namespace

void VerbsChannel::DescribeRoute() {
  const ChannelAddress::Port& port = peer_.ports[peer_.queue_pairs[targets_[main_]].port];
  Gid gid;
  std::memcpy(gid.bytes.raw, port.gid.data(), port.gid.size());
  const Adapter& adapter = *main().adapter();
  route_ = adapter.Name() + " " + adapter.port().gid.Text() + " -> " + gid.Text();
}

// Returns whether queue pair `i` can take the place of the main one.
bool VerbsChannel::CanCarry(size_t i) const {
  return IsFurther(i) && pairs_[i]->receives() && outbox_.Reaches(i);
}

// Prefers those for which the memory of both ends is known.
size_t VerbsChannel::FindCarrier() const {
  size_t found = kNoCarrier;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const bool up = states_[i].phase == PairState::Phase::kUp;
    if (!up || !CanCarry(i) || !pairs_[i]->adapter()->active()) continue;
    if (pairs_[i]->takes_shares()) return i;
    if (found == kNoCarrier) found = i;
  }
  return found;
}

void VerbsChannel::Signal(size_t i, const Immediate& signal) {
  Work work = outbox_.Empty(signal);
  work.signaled = true;
  pairs_[i]->PushFirst(work);
  Pump();
}

// Returns false if the channel must be broken instead.
bool VerbsChannel::FailMain(const Status& reason, size_t carrier) {
  if (Moving()) return true;
  if (carrier == kNoCarrier || state_.load() != State::kConnected) return false;
  Log(LogLevel::kWarning, "verbs: the channel " + route_ + " goes on through " +
                              pairs_[carrier]->adapter()->Name() + ": " + reason.message());
  const Nanos now = Now();
  main().adapter()->NoteFailure(now);
  PairState& state = states_[main_];
  state.unfinished.clear();
  state.peer_down = false;
  state.due = now + kFlushTimeout;
  state.phase = PairState::Phase::kFailed;
  move_ = Move();
  move_.to = carrier;
  move_.agreed = !passive_;
  move_.reason = reason;
  move_.probed = now;
  main().Break();
  Signal(carrier, Immediate::PairDown(main_, /*answer=*/false));
  Attend();
  return true;
}

// Breaks the channel, and notifies the peer by queue pair `i`: it may have nothing to send that
// could fail.
void VerbsChannel::GiveUp(size_t i, const Status& reason) {
  if (state_.load() != State::kConnected) return BreakLocked(reason);
  Signal(i, Immediate::Gone());
  if (state_.load() != State::kConnected) return;
  outbox_.Drop();
  writes_.Drop();
  reads_.Drop();
  close_reason_ = reason;
  gave_up_ = true;
  deadline_ = Now() + kClosingTimeout;
  state_.store(State::kClosing);
  Attend();
}

// A signal arrived on queue pair `i`.
Status VerbsChannel::HandleSignal(size_t i, const Immediate& signal) {
  const size_t about = signal.IsArrived() ? signal.ArrivedIndex() : signal.units;
  if (about >= states_.size() || about == i || !pairs_[i]->receives()) {
    return Status(Code::kDataLoss, "a signal about a queue pair that does not exist");
  }
  if (signal.IsArrived()) return HandleArrived(i, signal);
  return about == main_ ? HandleMainDown(i) : HandlePairDown(signal);
}

// The peer's end of the main queue pair is broken, as a signal on queue pair `i` says.
Status VerbsChannel::HandleMainDown(size_t i) {
  if (state_.load() != State::kConnected) return OkStatus();
  const Status left(Code::kUnavailable, "the peer has left " + main().adapter()->Name());
  // The active end tests a queue pair before it uses it.
  if (passive_ && states_[i].phase == PairState::Phase::kUntested && !states_[i].made_anew) {
    BringUp(i);
  }
  const bool usable = states_[i].phase == PairState::Phase::kUp && CanCarry(i);
  if (!FailMain(left, usable ? i : FindCarrier())) {
    GiveUp(i, left);
    return OkStatus();
  }
  if (passive_ && !move_.agreed) {
    if (!usable) {
      GiveUp(i, move_.reason);
      return OkStatus();
    }
    move_.to = i;
    move_.agreed = true;
  }
  SettleMain(Now());
  return OkStatus();
}

Status VerbsChannel::HandleArrived(size_t i, const Immediate& signal) {
  PairState& state = states_[main_];
  if (state_.load() == State::kBroken) return OkStatus();
  if (signal.ArrivedIndex() != main_ || !Moving() || !move_.agreed || i != move_.to ||
      std::exchange(state.peer_down, true)) {
    return Status(Code::kDataLoss, "a count of what arrived at a wrong time");
  }
  move_.peer_arrived = signal.units;
  SettleMain(Now());
  return OkStatus();
}

// Gives up the move: the reason for it, and `why` it cannot end.
void VerbsChannel::BreakMove(const std::string& why) {
  BreakLocked(Status(move_.reason.code(), move_.reason.message() + "; " + why));
}

// Ends the phase kFailed of the main queue pair if it is over.
void VerbsChannel::SettleMain(Nanos now) {
  PairState& state = states_[main_];
  if (!Moving() || state_.load() != State::kConnected) return;
  if (!move_.answered && now - move_.probed >= kAnswerInterval) {
    move_.probed = now;
    if (++move_.probes > kMaxUnanswered) {
      return BreakMove("the peer does not answer through " + pairs_[move_.to]->adapter()->Name());
    }
  }
  const Nanos last = state.due + device_->keepalive();
  // What arrives later would be lost, unless the card died. Then nothing arrives. One that lives
  // flushes at once, but may have to wait for a processor to say so.
  if (!main().Drained()) {
    if (now > last) return BreakMove("its card does not flush what was posted to it");
    if (now <= state.due || !main().adapter()->dead()) return;
  }
  if (move_.agreed && !std::exchange(move_.reported, true)) {
    Signal(move_.to, Immediate::Arrived(main_, state.arrived));
  }
  if (move_.reported && state.peer_down) return MoveMain(now);
  if (now > last) BreakMove("the peer does not say what had arrived from it");
}

void VerbsChannel::MoveMain(Nanos now) {
  PairState& state = states_[main_];
  std::vector<Work> works = std::move(state.unfinished);
  for (Work& work : main().TakePosted()) works.push_back(std::move(work));
  for (Work& work : main().TakeWaiting()) works.push_back(std::move(work));
  // The last one that arrived, with all before it.
  uint32_t arrived = (move_.peer_arrived - state.confirmed) % Immediate::kCountModulus;
  auto rest = works.begin();
  for (auto work = works.begin(); work != works.end() && arrived > 0; ++work) {
    if (!work->consumes_receive()) continue;
    --arrived;
    rest = work + 1;
  }
  if (arrived > 0) {
    // A card has confirmed what it then lost, or the peer does not tell the truth.
    const Status lost(
        Code::kUnavailable,
        move_.reason.message() + ", and the peer did not get all that its card had confirmed");
    return GiveUp(move_.to, lost);
  }
  for (auto work = works.begin(); work != rest; ++work) {
    if (work->kind != Work::Kind::kWrite || !work->last) continue;
    transfers_.OnEnded(main_, *work);
    LaneOf(work->kind).OnEnded(work->share);
  }
  const size_t old = std::exchange(main_, move_.to);
  UsePair(main_);
  LeavePair(old, works, now);
  outbox_.ForgetPair(old);
  const Status moved = outbox_.MoveTo(main().adapter(), main_);
  if (!moved.ok()) return GiveUp(main_, moved);
  DescribeRoute();
  for (auto work = works.begin(); work != works.end(); ++work) {
    const bool again = work >= rest || work->kind == Work::Kind::kRead;
    if (again && Transfers::IsRepeated(*work)) {
      const Status aimed = transfers_.Retarget(&*work, &device_->memory(), main_, main().port());
      if (!aimed.ok()) return GiveUp(main_, aimed);
    } else if (again && work->consumes_receive()) {
      outbox_.Retarget(&*work);
      work->after[main_] = transfers_.ended()[main_];
    } else {
      continue;
    }
    main().Push(*work);
  }
  // Makes room, and thus pushes what waits.
  for (auto work = works.begin(); work != rest; ++work) {
    if (work->kind == Work::Kind::kBatch) outbox_.OnWritten(*work);
  }
  NoteDelivered();
  Log(LogLevel::kInfo, "verbs: notifications go by " + route_);
  AdvanceLanes();
  Attend();
  Pump();
}

}  // namespace rdma_transport::fabric::verbs
