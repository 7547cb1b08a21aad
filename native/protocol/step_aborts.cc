#include "protocol/step_aborts.h"

#include <algorithm>

namespace rdma_transport {

StepAborts::State& StepAborts::RememberLocked(PeerId task, int64_t step) {
  Step& entry = steps_[step];
  const bool known = task == nullptr ? entry.own.aborted || entry.own.generation != 0
                                     : entry.peers.count(task) != 0;
  State& state = task == nullptr ? entry.own : entry.peers[task];
  if (known) return state;
  memories_[task].steps.push_back(step);
  MakeRoomLocked(task);
  return state;
}

// Restarted steps are dropped last: they are still in use, and without the generation no abort of
// them would take effect.
void StepAborts::MakeRoomLocked(PeerId task) {
  std::deque<int64_t>& kept = memories_[task].steps;
  for (size_t tries = kept.size(); kept.size() > kRemembered; --tries) {
    const int64_t oldest = kept.front();
    kept.pop_front();
    if (tries > 1 && RestartedLocked(task, oldest)) {
      kept.push_back(oldest);
    } else {
      ForgetLocked(task, oldest);
    }
  }
}

bool StepAborts::RestartedLocked(PeerId task, int64_t step) const {
  const auto found = steps_.find(step);
  if (found == steps_.end()) return false;
  if (task == nullptr) return found->second.own.generation != 0;
  const auto theirs = found->second.peers.find(task);
  return theirs != found->second.peers.end() && theirs->second.generation != 0;
}

void StepAborts::ForgetLocked(PeerId task, int64_t step) {
  const auto found = steps_.find(step);
  if (found == steps_.end()) return;
  Step& entry = found->second;
  if (task == nullptr) {
    entry.own = State();
  } else {
    entry.peers.erase(task);
  }
  const bool own = entry.own.aborted || entry.own.generation != 0;
  if (!own && entry.peers.empty()) steps_.erase(found);
}

bool StepAborts::Abort(int64_t step, std::string error) {
  std::lock_guard<std::mutex> lock(mu_);
  State& own = RememberLocked(nullptr, step);
  if (own.aborted) return false;
  own.aborted = true;
  own.error = std::move(error);
  return true;
}

StepAbort StepAborts::ForLocked(PeerId peer, int64_t step, const Step& found) const {
  const auto theirs = found.peers.find(peer);
  return {step, found.own.generation, theirs == found.peers.end() ? 0 : theirs->second.generation,
          found.own.error};
}

std::optional<StepAbort> StepAborts::For(PeerId peer, int64_t step) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = steps_.find(step);
  if (found == steps_.end() || !found->second.own.aborted) return std::nullopt;
  return ForLocked(peer, step, found->second);
}

std::vector<StepAbort> StepAborts::AllFor(PeerId peer) const {
  std::vector<StepAbort> all;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [step, entry] : steps_) {
    if (entry.own.aborted) all.push_back(ForLocked(peer, step, entry));
  }
  return all;
}

// memories_ keeps the step's number for a while; forgetting it twice is harmless.
void StepAborts::End(int64_t step) {
  std::lock_guard<std::mutex> lock(mu_);
  steps_.erase(step);
}

uint32_t StepAborts::Restart(int64_t step) {
  std::lock_guard<std::mutex> lock(mu_);
  State& own = RememberLocked(nullptr, step);
  own.aborted = false;
  own.error.clear();
  for (auto& [peer, theirs] : steps_[step].peers) theirs.aborted = false;
  return ++own.generation;
}

bool StepAborts::EverRestarted(int64_t step) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = steps_.find(step);
  if (found == steps_.end()) return false;
  const auto& peers = found->second.peers;
  return found->second.own.generation != 0 ||
         std::any_of(peers.begin(), peers.end(),
                     [](const auto& entry) { return entry.second.generation != 0; });
}

std::vector<std::pair<int64_t, uint32_t>> StepAborts::Restarted() const {
  std::vector<std::pair<int64_t, uint32_t>> restarted;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [step, entry] : steps_) {
    if (entry.own.generation != 0) restarted.emplace_back(step, entry.own.generation);
  }
  return restarted;
}

void StepAborts::OnPeerUp(PeerId peer, uint64_t incarnation) {
  std::lock_guard<std::mutex> lock(mu_);
  Memory& memory = memories_[peer];
  if (memory.incarnation == incarnation) return;
  for (const int64_t step : memory.steps) ForgetLocked(peer, step);
  memory = {incarnation, {}};
}

bool StepAborts::OnPeerAbort(PeerId peer, uint64_t incarnation, const StepAbort& abort) {
  std::lock_guard<std::mutex> lock(mu_);
  if (memories_[peer].incarnation != incarnation) return false;
  const auto found = steps_.find(abort.step);
  const uint32_t here = found == steps_.end() ? 0 : found->second.own.generation;
  if (abort.peer_generation != here) return false;  // the peer sends it again: see OnPeerRestart()
  State& theirs = RememberLocked(peer, abort.step);
  if (abort.generation < theirs.generation) return false;
  theirs = {abort.generation, true, abort.error};
  return true;
}

void StepAborts::OnPeerRestart(PeerId peer, uint64_t incarnation, int64_t step,
                               uint32_t generation) {
  std::lock_guard<std::mutex> lock(mu_);
  if (memories_[peer].incarnation != incarnation) return;
  State& theirs = RememberLocked(peer, step);
  if (generation > theirs.generation) theirs = {generation, false, {}};
}

std::optional<std::string> StepAborts::ErrorOf(PeerId peer, int64_t step) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = steps_.find(step);
  if (found == steps_.end()) return std::nullopt;
  const auto theirs = found->second.peers.find(peer);
  if (theirs == found->second.peers.end() || !theirs->second.aborted) return std::nullopt;
  return theirs->second.error;
}

}  // namespace rdma_transport
