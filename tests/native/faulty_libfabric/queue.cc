// What happens to completions between the real queue and the client.

#include <sys/timerfd.h>

#include "objects.h"

namespace faulty_libfabric {
namespace {

constexpr uint64_t kOfPeer = FI_REMOTE_WRITE | FI_REMOTE_READ;

void Receive(Queue& queue, const fi_cq_err_entry& entry) {
  if ((entry.flags & kOfPeer) != 0) {
    Completion completion;
    completion.entry = entry;
    completion.entry.op_context = nullptr;
    Show(queue, std::move(completion));
    return;
  }
  auto* operation = static_cast<Operation*>(entry.op_context);
  if (queue.domain->operations.count(operation) != 0) Finish(operation, entry);
}

}  // namespace

void Drain(Queue& queue) {
  constexpr size_t kEntries = 64;
  fi_cq_data_entry entries[kEntries];
  while (true) {
    const ssize_t count = fi_cq_read(queue.real, entries, kEntries);
    if (count == -FI_EAVAIL) {
      fi_cq_err_entry error = {};
      if (fi_cq_readerr(queue.real, &error, 0) <= 0) return;
      error.err_data = nullptr;
      error.err_data_size = 0;
      Receive(queue, error);
      continue;
    }
    if (count <= 0) return;
    for (ssize_t i = 0; i < count; ++i) {
      fi_cq_err_entry entry = {};
      entry.op_context = entries[i].op_context;
      entry.flags = entries[i].flags;
      entry.len = entries[i].len;
      entry.buf = entries[i].buf;
      entry.data = entries[i].data;
      Receive(queue, entry);
    }
  }
}

void Show(Queue& queue, Completion completion) {
  const auto settings = Current();
  Clock::time_point due = Clock::now();
  if (settings->late_us > 0) {
    due += std::chrono::microseconds(Random(settings->late_us));
    Count(&FaultyLibfabricCounters::late_completions);
  }
  if (due < queue.latest) {
    if (settings->order == Order::kProvider) {
      due = queue.latest;
    } else {
      Count(&FaultyLibfabricCounters::reordered_completions);
    }
  }
  queue.latest = std::max(queue.latest, due);
  queue.completions.emplace(due, std::move(completion));
}

bool IsReady(const Queue& queue) {
  return !queue.completions.empty() && queue.completions.begin()->first <= Clock::now();
}

void Settle(Domain& domain) {
  for (Queue* queue : domain.queues) {
    Drain(*queue);
    if (queue->timer < 0) continue;
    Clock::time_point due;  // Zero disarms.
    const auto consider = [&due](Clock::time_point time) {
      if (due == Clock::time_point() || time < due) due = time;
    };
    if (!queue->completions.empty()) consider(queue->completions.begin()->first);
    if (!domain.waiting.empty()) consider(domain.waiting.begin()->first);
    if (due == queue->armed) continue;
    queue->armed = due;
    const auto since = std::chrono::nanoseconds(due.time_since_epoch()).count();
    itimerspec when = {};
    when.it_value.tv_sec = since / 1'000'000'000;
    when.it_value.tv_nsec = since % 1'000'000'000;
    timerfd_settime(queue->timer, TFD_TIMER_ABSTIME, &when, nullptr);
  }
}

}  // namespace faulty_libfabric
