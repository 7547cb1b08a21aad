#include "protocol/steps.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <utility>

#include "protocol/hand_over.h"

namespace rdma_transport {
namespace {

// A peer that sent an abort on one link sends it on the others at once.
constexpr Nanos kAbortTimeout = kSecond;

void FailAborted(const std::list<std::shared_ptr<PendingRecv>>& recvs, const std::string& task,
                 const std::string& error) {
  for (const auto& recv : recvs) {
    if (!recv->Claim()) continue;
    Delivery delivery;
    delivery.status = Status(Code::kAborted, task + " aborted the step");
    delivery.error = error;
    recv->OnDelivery(std::move(delivery));
  }
}

}  // namespace

// --- Receives ---

bool Steps::Receive(PeerId peer, int64_t step, std::string_view key,
                    const std::shared_ptr<PendingRecv>& recv) {
  recv->Begin();
  return Hold(peer, step, key, recv) || Enter(peer, step, key, recv);
}

bool Steps::Confirmed(PeerId peer, int64_t step) const {
  return links_->AllUp(peer, [step](const Link& link) { return !link.AwaitsRestarted(step); });
}

bool Steps::Hold(PeerId peer, int64_t step, std::string_view key,
                 const std::shared_ptr<PendingRecv>& recv) {
  if (!restarted_.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(mu_);
  if (Confirmed(peer, step)) return false;
  held_.push_back({peer, step, std::string(key), recv});
  return true;
}

// Called when a link to that peer has confirmed the restart or ended.
void Steps::ReleaseHeld(PeerId peer, int64_t step) {
  std::vector<Held> released;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!Confirmed(peer, step)) return;
    const auto first = std::stable_partition(held_.begin(), held_.end(), [&](const Held& held) {
      return held.step != step || held.peer != peer;
    });
    released.assign(std::make_move_iterator(first), std::make_move_iterator(held_.end()));
    held_.erase(first, held_.end());
  }
  for (const Held& held : released) {
    Enter(held.peer, held.step, held.key, held.recv);
    // Its owner could not remove it before it was in the mailbox.
    if (held.recv->claimed()) Remove(held.step, held.key, held.recv.get());
  }
}

bool Steps::Enter(PeerId peer, int64_t step, std::string_view key,
                  const std::shared_ptr<PendingRecv>& recv) {
  Arrival arrival;
  const KeyId id = KeyId::Of(key);
  switch (mailbox_.TakeOrWait(step, id, peer, recv, &arrival)) {
    case Mailbox::Taken::kArrival:
      Deliver(std::move(arrival), recv);
      return false;
    case Mailbox::Taken::kPulled:
      Deliver(std::move(arrival), recv);
      break;
    case Mailbox::Taken::kEnded:
      if (const auto own = aborts_.For(peer, step)) {
        FailAborted({recv}, "this task", own->error);
      } else {
        FailAll({recv}, Status(Code::kAborted, "the step has ended on this task"));
      }
      return false;
    case Mailbox::Taken::kWaiting:
      break;
  }
  // Checked after `recv` is in the mailbox, where a later abort finds it.
  const auto error = aborts_.ErrorOf(peer, step);
  if (!error.has_value()) return true;
  mailbox_.Remove(step, id, recv.get());
  FailAborted({recv}, "peer " + peer->remote, *error);
  return false;
}

void Steps::Remove(int64_t step, std::string_view key, const PendingRecv* recv) {
  mailbox_.Remove(step, KeyId::Of(key), recv);
}

// A receive that has failed leaves the tensor to the next one.
void Steps::OnArrival(int64_t step, const KeyId& key, Arrival arrival) {
  std::shared_ptr<PendingRecv> recv;
  do {
    recv = mailbox_.Put(step, key, &arrival);
  } while (recv != nullptr && recv->claimed());
  if (recv != nullptr) Deliver(std::move(arrival), recv);
}

void Steps::Deliver(Arrival arrival, const std::shared_ptr<PendingRecv>& recv) {
  if (arrival.pull) {
    if (!recv->claimed()) fallback_->Receive("its peer", recv, arrival.reason);
    return;
  }
  if (!recv->Claim()) return;
  if (arrival.delivery.status.ok()) {
    arrival.traffic->Received(arrival.delivery.mode).Add(arrival.delivery.bytes);
  }
  if (arrival.channel == nullptr || !arrival.delivery.status.ok()) {
    return HandOver(arrival.traffic, std::move(arrival.delivery), recv.get());
  }
  const std::shared_ptr<Link> link = links_->Over(arrival.channel.get());
  if (link != nullptr) return link->ReadThenDeliver(std::move(arrival), recv);
  Delivery lost;
  lost.status = Status(Code::kUnavailable, "the peer was lost before its tensor could be read");
  recv->OnDelivery(std::move(lost));
}

// --- Steps of this task ---

void Steps::End(int64_t step) {
  mailbox_.EndStep(step);
  aborts_.End(step);
}

void Steps::Restart(int64_t step) {
  restarted_.store(true);
  const auto recvs = mailbox_.TakeAllPending(step);
  const uint32_t generation = aborts_.Restart(step);
  mailbox_.ReopenStep(step);
  std::set<const void*> up;
  for (const auto& link : links_->Up()) {
    up.insert(link.get());
    link->SendRestart(step, generation);
  }
  mailbox_.Discard(step, [&up](const Arrival& came) { return up.count(came.origin) == 0; });
  FailAll(recvs, Status(Code::kAborted, "the step was restarted on this task"));
}

// A link that comes up in the meantime finds the abort: see OnLinkUp(). Tensors are dropped from
// now on, because a step whose master died never ends; but not if they may be of a generation that
// begins on another task.
void Steps::Abort(int64_t step, std::string error) {
  if (mailbox_.HasEnded(step) || !aborts_.Abort(step, std::move(error))) return;
  mailbox_.CloseStep(step, [&] { return !aborts_.EverRestarted(step); });
  for (const auto& link : links_->Up()) {
    if (const auto abort = aborts_.For(link->peer(), step)) link->SendAbort(*abort);
  }
}

// --- Steps of peers ---

bool Steps::OnAbort(Link* link, StepAbort abort) {
  const auto same = [&](const ComingAbort& coming) {
    return coming.peer == link->peer() && coming.abort.step == abort.step &&
           coming.abort.generation == abort.generation &&
           coming.abort.peer_generation == abort.peer_generation;
  };
  auto coming = std::find_if(coming_aborts_.begin(), coming_aborts_.end(), same);
  if (coming == coming_aborts_.end()) {
    if (coming_aborts_.size() == StepAborts::kRemembered) coming_aborts_.pop_front();
    coming_aborts_.push_back(
        {std::move(abort), link->remote().incarnation, link->peer(), Now(), {}});
    coming = std::prev(coming_aborts_.end());
  }
  coming->links.insert(link);
  return Tick();
}

bool Steps::HasCome(const ComingAbort& coming) const {
  return links_->AllUp(coming.peer, [&coming](const Link& link) {
    return link.remote().incarnation != coming.incarnation || coming.links.count(&link) != 0;
  });
}

bool Steps::Tick() {
  if (coming_aborts_.empty()) return false;
  const Nanos now = Now();
  const auto first = std::stable_partition(
      coming_aborts_.begin(), coming_aborts_.end(), [&](const ComingAbort& coming) {
        return now - coming.since < kAbortTimeout && !HasCome(coming);
      });
  const std::vector<ComingAbort> come(std::make_move_iterator(first),
                                      std::make_move_iterator(coming_aborts_.end()));
  coming_aborts_.erase(first, coming_aborts_.end());
  for (const ComingAbort& each : come) Apply(each);
  return !coming_aborts_.empty();
}

void Steps::Apply(const ComingAbort& come) {
  const StepAbort& abort = come.abort;
  if (!aborts_.OnPeerAbort(come.peer, come.incarnation, abort)) return;
  // Otherwise the step may go on here with what the peer sent before.
  if (aborts_.For(come.peer, abort.step).has_value()) {
    mailbox_.Discard(abort.step, [&come](const Arrival& came) { return came.peer() == come.peer; });
  }
  FailAborted(mailbox_.TakePending(abort.step, come.peer), "peer " + come.peer->remote,
              abort.error);
}

// An abort that the peer received before it restarted the step applied to its previous generation.
// Receives of the new one would also wait in vain until this task restarts the step, so it is sent
// again.
void Steps::OnRestart(Link* link, int64_t step, uint32_t generation) {
  mailbox_.Discard(step, [link](const Arrival& came) { return came.origin == link; });
  aborts_.OnPeerRestart(link->peer(), link->remote().incarnation, step, generation);
  mailbox_.ReopenStep(step);  // what follows is of the new generation
  if (const auto abort = aborts_.For(link->peer(), step)) link->SendAbort(*abort);
}

void Steps::OnLinkUp(Link* link) {
  aborts_.OnPeerUp(link->peer(), link->remote().incarnation);
  for (const auto& [step, generation] : aborts_.Restarted()) link->SendRestart(step, generation);
  for (const StepAbort& abort : aborts_.AllFor(link->peer())) link->SendAbort(abort);
}

void Steps::OnLinkDown(const Link& link) {
  for (const auto& [step, generation] : aborts_.Restarted()) ReleaseHeld(link.peer(), step);
  Tick();
}

}  // namespace rdma_transport
