#include "collectives/named_calls.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "collectives/named_engine.h"
#include "collectives/per_process.h"
#include "collectives/shared_arena.h"

namespace rdma_transport::collectives {
namespace {

struct Published {
  std::mutex mu;
  std::map<int, std::shared_ptr<NamedCalls>> calls;
};

PerProcess<Published> all_published;

}  // namespace

struct NamedCalls::State {
  State(std::unique_ptr<Group> group, NamedOptions options)
      : engine(std::move(group), std::move(options)) {}
  NamedEngine engine;
};

NamedCalls::NamedCalls(std::unique_ptr<Group> group, NamedOptions options)
    : state_(std::make_unique<State>(std::move(group), std::move(options))) {
  const Status attached = SharedArena::Get().Attach(mesh());
  if (!attached.ok()) Log(LogLevel::kWarning, "large arrays are copied: " + attached.message());
}

NamedCalls::~NamedCalls() {
  if (state_->engine.Ours()) {
    SharedArena::Get().Detach(mesh());
  } else {
    state_.release();  // in a forked child nothing may be destroyed
  }
}

int NamedCalls::rank() const { return state_->engine.group()->rank(); }
int NamedCalls::size() const { return state_->engine.group()->size(); }
Mesh* NamedCalls::mesh() const { return state_->engine.group()->mesh(); }

void NamedCalls::Start(NamedCall call) { state_->engine.Start(std::move(call)); }
void NamedCalls::Close(const std::string& reason) { state_->engine.Close(reason); }

void NamedCalls::Publish(int number, std::shared_ptr<NamedCalls> calls) {
  Published& all = all_published.Get();
  std::lock_guard<std::mutex> lock(all.mu);
  all.calls[number].swap(calls);  // the old ones end after the lock
  if (all.calls[number] == nullptr) all.calls.erase(number);
}

std::shared_ptr<NamedCalls> NamedCalls::Find(int number) {
  Published& all = all_published.Get();
  std::lock_guard<std::mutex> lock(all.mu);
  const auto found = all.calls.find(number);
  return found == all.calls.end() ? nullptr : found->second;
}

}  // namespace rdma_transport::collectives
