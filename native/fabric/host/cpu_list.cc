#include "fabric/host/cpu_list.h"

#include <sched.h>

#include <charconv>
#include <fstream>

namespace rdma_transport::fabric::host {
namespace {

// Takes a number from the front of `text`. Returns -1 if there is none.
int TakeNumber(std::string_view* text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc()) return -1;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return number;
}

bool TakeIf(char wanted, std::string_view* text) {
  if (text->empty() || text->front() != wanted) return false;
  text->remove_prefix(1);
  return true;
}

}  // namespace

bool MayRunOnAny(std::string_view list) {
  cpu_set_t allowed;
  if (list.empty() || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return true;
  do {
    const int first = TakeNumber(&list);
    const int last = TakeIf('-', &list) ? TakeNumber(&list) : first;
    if (first < 0 || last < first || last >= CPU_SETSIZE) return true;
    for (int cpu = first; cpu <= last; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) return true;
    }
  } while (TakeIf(',', &list));
  return !list.empty();
}

bool MayRunNear(const std::string& device) {
  std::ifstream file(device + "/local_cpulist");
  std::string line;
  return !std::getline(file, line) || MayRunOnAny(line);
}

}  // namespace rdma_transport::fabric::host
