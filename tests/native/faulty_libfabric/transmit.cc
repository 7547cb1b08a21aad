// What happens to accepted operations: they wait, are transmitted, and complete.

#include "objects.h"

namespace faulty_libfabric {
namespace {

constexpr uint64_t kRealFlags = FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE;
constexpr uint64_t kEntryFlags[kKinds] = {FI_SEND | FI_MSG, FI_WRITE | FI_RMA, FI_READ | FI_RMA,
                                          FI_RECV | FI_MSG};
constexpr Counter kOvertaken[kKinds - 1] = {&FaultyLibfabricCounters::overtaken_sends,
                                            &FaultyLibfabricCounters::overtaken_writes,
                                            &FaultyLibfabricCounters::overtaken_reads};
constexpr auto kRetryAfter = std::chrono::microseconds(100);
// Of what was accepted for a peer that does not exist any more.
constexpr auto kGiveUpAfter = std::chrono::seconds(1);

ssize_t TransmitRma(Operation& operation, uint64_t flags) {
  fi_msg_rma message = {};
  message.msg_iov = &operation.buffer;
  message.iov_count = 1;
  message.addr = operation.peer;
  message.rma_iov = &operation.remote;
  message.rma_iov_count = 1;
  message.context = &operation;
  message.data = operation.data;
  fid_ep* real = operation.endpoint->real;
  return operation.kind == Kind::kRead ? fi_readmsg(real, &message, flags)
                                       : fi_writemsg(real, &message, flags);
}

ssize_t TransmitMessage(Operation& operation, uint64_t flags) {
  fi_msg message = {};
  message.msg_iov = &operation.buffer;
  message.iov_count = 1;
  message.addr = operation.peer;
  message.context = &operation;
  message.data = operation.data;
  fid_ep* real = operation.endpoint->real;
  return operation.kind == Kind::kReceive ? fi_recvmsg(real, &message, flags)
                                          : fi_sendmsg(real, &message, flags);
}

}  // namespace

Clock::time_point HeldUntil() {
  using std::chrono::milliseconds;
  return std::chrono::floor<milliseconds>(Clock::now()) + milliseconds(1);
}

ssize_t TransmitNow(Operation& operation) {
  const bool rma = operation.kind == Kind::kWrite || operation.kind == Kind::kRead;
  const uint64_t flags = (operation.flags & kRealFlags) | FI_COMPLETION;
  const ssize_t result = rma ? TransmitRma(operation, flags) : TransmitMessage(operation, flags);
  if (result != 0 || operation.kind == Kind::kReceive) return result;
  Endpoint& endpoint = *operation.endpoint;
  if (operation.sequence < endpoint.highest_transmitted) {
    Count(kOvertaken[static_cast<int>(operation.kind)]);
  } else {
    endpoint.highest_transmitted = operation.sequence;
  }
  return 0;
}

void Transmit(Domain& domain) {
  const Clock::time_point now = Clock::now();
  std::vector<std::pair<Clock::time_point, Operation*>> again;
  const bool held = WritesAreHeld();
  while (!domain.waiting.empty() && domain.waiting.begin()->first <= now) {
    Operation* operation = domain.waiting.begin()->second;
    domain.waiting.erase(domain.waiting.begin());
    if (held && operation->kind == Kind::kWrite) {
      again.emplace_back(HeldUntil(), operation);
      continue;
    }
    const ssize_t result = TransmitNow(*operation);
    if (result == -FI_EAGAIN && now - operation->refused.value_or(now) < kGiveUpAfter) {
      if (!operation->refused.has_value()) operation->refused = now;
      again.emplace_back(now + kRetryAfter, operation);
    } else if (result != 0) {
      Finish(operation, EntryOf(*operation, static_cast<int>(-result)));
    }
  }
  domain.waiting.insert(again.begin(), again.end());
}

void TransmitAll(Domain& domain, const std::function<bool(const Operation&)>& chosen) {
  for (auto at = domain.waiting.begin(); at != domain.waiting.end();) {
    Operation* operation = at->second;
    if (!chosen(*operation)) {
      ++at;
      continue;
    }
    at = domain.waiting.erase(at);
    if (TransmitNow(*operation) != 0) {
      Finish(operation, EntryOf(*operation, FI_ECANCELED));
    }
  }
}

fi_cq_err_entry EntryOf(const Operation& operation, int error) {
  fi_cq_err_entry entry = {};
  entry.flags = kEntryFlags[static_cast<int>(operation.kind)];
  entry.err = error;
  return entry;
}

void Finish(Operation* operation, fi_cq_err_entry entry) {
  Endpoint& endpoint = *operation->endpoint;
  if (!operation->completed_early) {
    Completion completion;
    completion.entry = entry;
    completion.entry.op_context = operation->context;
    completion.slot = operation->slot;
    Show(operation->kind == Kind::kReceive ? *endpoint.receive : *endpoint.transmit,
         std::move(completion));
  }
  endpoint.domain->operations.erase(operation);
}

}  // namespace faulty_libfabric
