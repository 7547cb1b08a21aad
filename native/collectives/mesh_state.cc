#include "collectives/mesh_state.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

namespace rdma_transport::collectives {

Status MeshState::Wait(std::unique_lock<std::mutex>* lock, const Patience& patience,
                       const std::function<bool()>& done, const std::function<void()>& check,
                       const char* what) const {
  while (!done()) {
    const Nanos now = Now();
    if (now >= patience.deadline) {
      return Status(Code::kDeadlineExceeded, std::string("timed out: ") + what);
    }
    const Nanos until = std::min(patience.deadline, now + kCheckInterval);
    changed.wait_until(*lock,
                       std::chrono::steady_clock::time_point(std::chrono::nanoseconds(until)));
    if (done()) return OkStatus();
    lock->unlock();
    check();
    const bool interrupted = patience.interrupted != nullptr && patience.interrupted();
    lock->lock();
    if (interrupted && !done()) return Status(Code::kCancelled, "interrupted");
  }
  return OkStatus();
}

Status MeshState::WaitPolling(std::unique_lock<std::mutex>* lock, const Patience& patience,
                              const std::function<bool()>& done, const std::function<void()>& check,
                              const char* what) const {
  while (helper && !done()) {
    const Nanos until = std::min(patience.deadline, Now() + kCheckInterval);
    lock->unlock();
    helper([&] {
      std::lock_guard<std::mutex> each(mu);
      return done() || Now() >= until;
    });
    const bool idle = Now() < until;
    const bool interrupted = !idle && patience.interrupted != nullptr && patience.interrupted();
    if (!idle) check();
    lock->lock();
    if (interrupted && !done()) return Status(Code::kCancelled, "interrupted");
    if (idle || until == patience.deadline) break;
  }
  return Wait(lock, patience, done, check, what);
}

Status MeshState::Gone(int source) const {
  if (source != kAny) {
    const Absence& its = absent[source];
    if (!its.lost.ok() || !its.left) return its.lost;
    return Status(Code::kUnavailable,
                  "rank " + std::to_string(source) + " is gone: it closed the communicator");
  }
  size_t away = 0;
  for (const Absence& its : absent) {
    if (!its.lost.ok() && !its.left) return its.lost;
    away += its.left ? 1 : 0;
  }
  if (away == 0 || away + 1 < absent.size()) return OkStatus();
  return Status(Code::kUnavailable, "all other ranks have closed the communicator");
}

void MeshState::EndReceives() {
  inbox.receives.remove_if([this](const std::shared_ptr<Receive>& receive) {
    const Status gone = Gone(receive->peer);
    if (!gone.ok()) End(receive.get(), gone);
    return !gone.ok();
  });
  changed.notify_all();  // for those that wait for a message without a receive
}

Status MeshState::Deliver(const Envelope& envelope, std::string_view bytes, bool* received) {
  const auto letter = std::make_shared<Letter>();
  letter->envelope = envelope;
  {
    std::lock_guard<std::mutex> lock(mu);
    const auto receive = inbox.TakeReceive(envelope);
    *received = receive != nullptr;
    if (receive == nullptr) {
      letter->held = AllocateBytes(bytes.size());
      if (letter->held == nullptr) {
        return Status(Code::kResourceExhausted, "there is no memory for a message of " +
                                                    std::to_string(bytes.size()) + " bytes");
      }
      if (!bytes.empty()) std::memcpy(letter->held.get(), bytes.data(), bytes.size());
      letter->accepted = true;
      inbox.letters.push_back(letter);
      changed.notify_all();
      return OkStatus();
    }
    Match(letter.get(), receive);
    ++copying;
  }
  if (letter->target != nullptr && !bytes.empty()) {
    std::memcpy(letter->target, bytes.data(), bytes.size());
  }
  std::lock_guard<std::mutex> lock(mu);
  --copying;
  End(letter->receive.get(), OkStatus());
  return OkStatus();
}

void MeshState::End(MessageCall* call, const Status& status) const {
  if (call->done) return;
  if (call->status.ok()) call->status = status;
  call->done = true;
  changed.notify_all();
}

void MeshState::CheckAlive(int peer) const {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    if (peer != kAny && static_cast<size_t>(peer) != rank) continue;
    const auto end = ends[rank].lock();
    if (end != nullptr) end->CheckAlive();
  }
}

}  // namespace rdma_transport::collectives
