// The thread that does what a card would do on its own.

#include "engine.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace fake_ibverbs {
namespace {

constexpr int kStepsPerTurn = 16;

// Lets the calls that wait now have the lock first, for mutexes are not fair.
void LetOthersGo(const Fake& fake) {
  const uint64_t enough = fake.served.load() + static_cast<uint64_t>(fake.waiting.load());
  for (int i = 0; i < 1000 && fake.served.load() < enough; ++i) sched_yield();
}

}  // namespace

bool PathUp(const Fake& fake, const Qp& qp) {
  if (fake.path_broken || Now() < fake.broken_until || ContextOf(qp.context)->fatal) return false;
  const PortConfig* port = fake.PortOf(qp.context, qp.attr.port_num);
  if (port == nullptr || port->state != IBV_PORT_ACTIVE) return false;
  if (qp.attr.pkey_index >= port->pkeys.size()) return false;
  return qp.attr.ah_attr.is_global == 0 || OwnGid(fake, qp) != nullptr;
}

const GidEntry* OwnGid(const Fake& fake, const Qp& qp) {
  const PortConfig* port = fake.PortOf(qp.context, qp.attr.port_num);
  const uint8_t index = qp.attr.ah_attr.grh.sgid_index;
  if (port == nullptr || index >= port->gids.size() || !port->gids[index].present) return nullptr;
  return &port->gids[index];
}

Nanos FreeAt(const Fake& fake, const Qp& qp) {
  const auto found = fake.traffic.find({qp.context->device->name, qp.attr.port_num});
  return found == fake.traffic.end() ? 0 : found->second.free_at;
}

void UseBandwidth(Fake* fake, const Qp& qp, uint64_t bytes) {
  Traffic& traffic = fake->traffic[{qp.context->device->name, qp.attr.port_num}];
  traffic.bytes += bytes;
  const PortConfig* port = fake->PortOf(qp.context, qp.attr.port_num);
  if (port == nullptr || port->bandwidth == 0) return;
  // The engine may come late, and catches up.
  const Nanos begin = std::max(traffic.free_at, Now() - kMillisecond);
  traffic.free_at = begin + static_cast<Nanos>(bytes * 1000000000 / port->bandwidth);
}

void BreakQp(Qp* qp) {
  ContextOf(qp->context)->fake->unsettled = true;
  qp->now = IBV_QPS_ERR;
  qp->requester.running = false;
  qp->responder.running = false;
}

Run RunAt(const std::vector<ibv_sge>& pieces, uint64_t offset, uint64_t limit) {
  for (const ibv_sge& piece : pieces) {
    if (offset < piece.length) {
      return {piece.addr + offset, piece.lkey, std::min<uint64_t>(piece.length - offset, limit)};
    }
    offset -= piece.length;
  }
  return {0, 0, 0};
}

bool Scatter(const Fake& fake, const ibv_pd* pd, const std::vector<ibv_sge>& pieces,
             uint64_t offset, const char* bytes, uint64_t length) {
  while (length > 0) {
    const Run run = RunAt(pieces, offset, length);
    if (run.length == 0) return false;
    char* to =
        FindMemory(fake.by_lkey, run.lkey, pd, run.address, run.length, IBV_ACCESS_LOCAL_WRITE);
    if (to == nullptr) return false;
    std::memmove(to, bytes, run.length);
    bytes += run.length;
    offset += run.length;
    length -= run.length;
  }
  return true;
}

void Fake::OnFrame(uint64_t link, const Frame& frame, const char* payload) {
  switch (frame.type) {
    case FrameType::kRequest:
      return OnRequest(this, link, frame);
    case FrameType::kData:
      return OnData(this, link, frame, payload);
    case FrameType::kReadData:
      return OnReadData(this, frame, payload);
    case FrameType::kAck:
      return OnAck(this, frame);
    case FrameType::kDropped:
      return OnDropped(this, frame);
  }
}

void Fake::OnLinkLost(uint64_t link) {
  for (const auto& [number, qp] : qps) {
    if (qp->requester.running && qp->requester.link == link) Lose(*this, qp, Now());
    if (qp->responder.running && qp->responder.link == link) qp->responder.running = false;
  }
}

// The application may come in between any two queue pairs, so each is looked up by its number.
Nanos Fake::RunQueuePairs(std::unique_lock<std::mutex>* lock) {
  unsettled = false;
  Nanos next = kNever;
  uint32_t number = 0;
  for (auto it = qps.begin(); it != qps.end(); it = qps.upper_bound(number)) {
    number = it->first;
    Nanos again = kNever;
    for (int i = 0; i < kStepsPerTurn; ++i) {
      const Nanos now = Now();
      again = std::min(StepRequester(this, it->second, now), StepResponder(this, it->second));
      if (again > now) break;
    }
    next = std::min({next, again, PlaceDue(it->second, Now())});
    if (waiting.load() == 0) continue;
    unsettled |= wire.Flush();
    lock->unlock();
    LetOthersGo(*this);
    lock->lock();
  }
  unsettled |= wire.Flush();
  return unsettled ? 0 : next;
}

void Fake::RunEngine() {
  std::vector<pollfd> polls;
  std::unique_lock<std::mutex> lock(mu);
  for (;;) {
    // Whoever gets in while queue pairs run writes to the descriptor: its own may have had its
    // turn.
    asleep = true;
    const Nanos next = RunQueuePairs(&lock);
    polls.clear();
    polls.push_back({wake_fd, POLLIN, 0});
    polls.push_back({control_fd, POLLIN, 0});
    wire.AddPolls(&polls);
    lock.unlock();
    LetOthersGo(*this);
    const Nanos wait = std::max<Nanos>(next == kNever ? 0 : next - Now(), 0);
    const timespec timeout = {static_cast<time_t>(wait / 1000000000),
                              static_cast<long>(wait % 1000000000)};
    const int ready =
        ppoll(polls.data(), polls.size(), next == kNever ? nullptr : &timeout, nullptr);
    lock.lock();
    if (ready <= 0) continue;
    if (polls[0].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake_fd, &count, sizeof(count));
    }
    if (polls[1].revents != 0) HandleControlSocket(this);
    wire.HandlePolls(polls);
  }
}

}  // namespace fake_ibverbs
