// Decides what becomes of a posted operation.

#include <algorithm>
#include <cstring>

#include "objects.h"

namespace faulty_libfabric {
namespace {

constexpr Counter kPosted[kKinds] = {
    &FaultyLibfabricCounters::sends, &FaultyLibfabricCounters::writes,
    &FaultyLibfabricCounters::reads, &FaultyLibfabricCounters::receives};
constexpr Counter kDelayed[kKinds - 1] = {&FaultyLibfabricCounters::delayed_sends,
                                          &FaultyLibfabricCounters::delayed_writes,
                                          &FaultyLibfabricCounters::delayed_reads};

ssize_t Refuse(Counter counter, ssize_t error) {
  Count(counter);
  return error;
}

// What is wrong with an operation, whenever it is posted.
ssize_t Check(const Operation& operation, const Settings& settings) {
  const Endpoint& endpoint = *operation.endpoint;
  if (!endpoint.enabled) return -FI_EOPBADSTATE;
  const uint64_t bytes = operation.buffer.iov_len;
  const uint64_t longest = operation.kind == Kind::kSend ? endpoint.max_send : endpoint.max_msg;
  if (operation.kind != Kind::kReceive &&
      bytes > std::min(longest, settings.max_msg.value_or(longest))) {
    return Refuse(&FaultyLibfabricCounters::too_large, -FI_EMSGSIZE);
  }
  if ((operation.flags & FI_REMOTE_CQ_DATA) != 0) {
    if (settings.cq_data == 0) return Refuse(&FaultyLibfabricCounters::bad_data, -FI_ENOSYS);
    if (settings.cq_data < 8 && (operation.data >> (8 * settings.cq_data)) != 0) {
      return Refuse(&FaultyLibfabricCounters::bad_data, -FI_EINVAL);
    }
  }
  if ((endpoint.domain->mr_mode & FI_MR_LOCAL) != 0 && !HasDescriptor(operation)) {
    return Refuse(&FaultyLibfabricCounters::bad_descriptor, -FI_EINVAL);
  }
  return 0;
}

// When to transmit, if not now.
std::optional<Clock::time_point> WaitsUntil(const Operation& operation, const Settings& settings,
                                            bool held) {
  if (held) return HeldUntil();
  if (operation.kind == Kind::kReceive || settings.order == Order::kProvider) return std::nullopt;
  if (Chance(50)) return std::nullopt;
  return Clock::now() + std::chrono::microseconds(Random(settings.delay_us));
}

// Whether an operation that waits is complete for its client.
bool CompletesEarly(const Operation& operation, bool held) {
  if (operation.kind == Kind::kRead || (operation.flags & FI_DELIVERY_COMPLETE) != 0) return false;
  return held || Chance(50);
}

void CompleteEarly(Operation& operation) {
  // The client may use its buffer again.
  const char* bytes = static_cast<const char*>(operation.buffer.iov_base);
  operation.copy.assign(bytes, bytes + operation.buffer.iov_len);
  operation.buffer.iov_base = operation.copy.data();
  Completion completion;
  completion.entry = EntryOf(operation, 0);
  completion.entry.op_context = operation.context;
  completion.slot = operation.slot;
  Show(*operation.endpoint->transmit, std::move(completion));
  operation.completed_early = true;
  Count(&FaultyLibfabricCounters::early_completions);
}

// An operation that nothing refuses any more.
ssize_t Accept(std::unique_ptr<Operation> owned, const Settings& settings) {
  Operation* operation = owned.get();
  Domain& domain = *operation->endpoint->domain;
  const bool broken = operation->kind != Kind::kReceive && domain.name == settings.broken;
  if (ShallFail(operation->kind) || broken) {
    Count(&FaultyLibfabricCounters::failed_completions);
    domain.operations.emplace(operation, std::move(owned));
    Finish(operation, EntryOf(*operation, FI_EIO));
    return 0;
  }
  // What is reported as placed is not lost.
  if ((operation->flags & FI_DELIVERY_COMPLETE) == 0 && ShallLose(settings, operation->kind)) {
    Count(&FaultyLibfabricCounters::lost);
    domain.operations.emplace(operation, std::move(owned));
    Finish(operation, EntryOf(*operation, 0));
    return 0;
  }
  const bool held = operation->kind == Kind::kWrite && WritesAreHeld();
  if (const auto due = WaitsUntil(*operation, settings, held); due.has_value()) {
    Count(kDelayed[static_cast<int>(operation->kind)]);
    domain.operations.emplace(operation, std::move(owned));
    domain.waiting.emplace(*due, operation);
    if (CompletesEarly(*operation, held)) CompleteEarly(*operation);
    return 0;
  }
  const ssize_t result = TransmitNow(*operation);
  if (result == 0) domain.operations.emplace(operation, std::move(owned));
  return result;
}

}  // namespace

ssize_t Post(std::unique_ptr<Operation> operation) {
  const auto settings = Current();
  Endpoint& endpoint = *operation->endpoint;
  Domain& domain = *endpoint.domain;
  const Kind kind = operation->kind;
  const std::lock_guard<std::mutex> lock(domain.mutex);
  if (const ssize_t error = Check(*operation, *settings); error != 0) return error;
  Transmit(domain);
  if (ShallRefuse(*settings)) return Refuse(&FaultyLibfabricCounters::eagain, -FI_EAGAIN);
  if (kind != Kind::kReceive) {
    if (settings->tx_size.has_value() && *endpoint.slots >= *settings->tx_size) {
      return Refuse(&FaultyLibfabricCounters::tx_full, -FI_EAGAIN);
    }
    operation->sequence = ++endpoint.posted;
    ++*endpoint.slots;
    operation->slot = Slot(nullptr, [slots = endpoint.slots](void*) { --*slots; });
  }
  const ssize_t result = Accept(std::move(operation), *settings);
  if (result == 0) {
    Count(kPosted[static_cast<int>(kind)]);
    const bool rma = kind == Kind::kWrite || kind == Kind::kRead;
    if (rma && domain.fabric->emulates_rma) Count(&FaultyLibfabricCounters::emulated);
  }
  Settle(domain);
  return result;
}

}  // namespace faulty_libfabric
