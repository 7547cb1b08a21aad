#include "chaos_world.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

namespace rdma_transport::testing {
namespace {

constexpr auto kDeadline = std::chrono::seconds(30);
constexpr uint32_t kType = 4;
constexpr int kThreads = 3;
constexpr int kStepsPerThread = 16;
constexpr size_t kMaxHeld = 12;

uint64_t ContentOf(int64_t step, size_t edge) {
  return (static_cast<uint64_t>(step) * 1000003 + edge) * 0x9e3779b97f4a7c15 + 1;
}

void Fill(char* data, size_t length, uint64_t content) {
  for (size_t at = 0; at < length; at += 8) {
    const uint64_t word = content * (2 * at + 1);
    std::memcpy(data + at, &word, std::min<size_t>(8, length - at));
  }
}

bool Matches(const char* data, size_t length, uint64_t content) {
  for (size_t at = 0; at < length; at += 8) {
    const uint64_t word = content * (2 * at + 1);
    if (std::memcmp(data + at, &word, std::min<size_t>(8, length - at)) != 0) return false;
  }
  return true;
}

// Where the first difference lies, and what is there: 0xdd is memory that was let go.
std::string Difference(const char* data, size_t length, uint64_t content) {
  size_t first = length;
  size_t different = 0;
  for (size_t at = 0; at < length; at += 8) {
    if (Matches(data + at, std::min<size_t>(8, length - at), content * (2 * at + 1))) continue;
    first = std::min(first, at);
    ++different;
  }
  char text[100];
  std::snprintf(text, sizeof(text), "%zu words from %zu on, there %02x %02x", different, first,
                first < length ? data[first] & 0xff : 0,
                first + 1 < length ? data[first + 1] & 0xff : 0);
  return text;
}

std::string Name(int64_t step, size_t edge) {
  return "step " + std::to_string(step) + " edge " + std::to_string(edge);
}

std::string ErrorOf(int64_t step) { return "an operation of step " + std::to_string(step); }

template <typename Condition>
bool Within(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::string KeyAt(const ChaosEdge& edge, int64_t step) {
  return edge.key +
         (edge.own_suffix ? ";7:" + std::to_string(step % 3) : std::string(kUsualSuffix));
}

}  // namespace

// What a producer made: overwritten when the last reference goes, as whoever gets the memory next
// would do.
class ChaosPayload {
 public:
  ChaosPayload(Task* task, const std::string& site, size_t length) : length_(length) {
    if (task != nullptr && length > 0) {
      arena_ = &task->arena();
      slots_ = task->runtime().slots();
      if (slots_->active()) data_ = slots_->Allocate(site, length);
      if (data_ == nullptr) data_ = arena_->Allocate(length);
      if (data_ != nullptr && slots_->tracing()) slots_->Trace(data_, site, length);
    }
    if (data_ != nullptr) return;
    arena_ = nullptr;
    data_ = new char[length + 1];
  }
  ~ChaosPayload() {
    Overwrite(0xdd);
    if (arena_ == nullptr) {
      delete[] data_;
    } else if (!slots_->Free(data_)) {
      arena_->Free(data_);
    }
  }
  ChaosPayload(const ChaosPayload&) = delete;
  ChaosPayload& operator=(const ChaosPayload&) = delete;

  void Overwrite(int byte) { std::memset(data_, byte, length_); }
  char* data() { return data_; }
  size_t length() const { return length_; }

 private:
  const size_t length_;
  memory::Arena* arena_ = nullptr;
  memory::SlotPools* slots_ = nullptr;
  char* data_ = nullptr;
};

class ChaosByGrpc final : public FallbackSend {
 public:
  ChaosByGrpc(ChaosWorld* world, int64_t step, size_t edge, std::shared_ptr<ChaosPayload> payload)
      : world_(world), step_(step), edge_(edge), payload_(std::move(payload)) {}

  Status Send() override {
    if (!Matches(payload_->data(), payload_->length(), ContentOf(step_, edge_))) {
      world_->complaints_.Add(Name(step_, edge_) + " went to gRPC with other bytes than it had");
    }
    if (!world_->grpc_.Put({step_, edge_})) {
      world_->complaints_.Add(Name(step_, edge_) + " went to gRPC twice");
    }
    return OkStatus();
  }
  std::unique_ptr<FallbackSend> Keep(bool copy) override {
    std::shared_ptr<ChaosPayload> kept = payload_;
    if (copy) {
      kept = std::make_shared<ChaosPayload>(nullptr, "", payload_->length());
      std::memcpy(kept->data(), payload_->data(), kept->length());
    }
    return std::make_unique<ChaosByGrpc>(world_, step_, edge_, std::move(kept));
  }
  void Fail(const Status& status) override {
    if (status.ok()) world_->complaints_.Add("a failure without an error");
    world_->FailStep(step_, Name(step_, edge_) + ": " + status.message());
  }

 private:
  ChaosWorld* const world_;
  const int64_t step_;
  const size_t edge_;
  const std::shared_ptr<ChaosPayload> payload_;
};

class ChaosReceive final : public PendingRecv {
 public:
  ChaosReceive(ChaosWorld* world, int64_t step, size_t edge, bool brings_memory)
      : world_(world),
        step_(step),
        edge_(edge),
        edge_spec_(world->edges_[edge]),
        brings_memory_(brings_memory) {}

  void OnDelivery(Delivery delivery) override {
    if (deliveries_.fetch_add(1) != 0) world_->complaints_.Add(Here() + " was delivered twice");
    if (delivery.status.ok()) {
      world_->arrived_.fetch_add(1);
      if (delivery.dtype != kType || delivery.bytes != Length() ||
          delivery.dims != std::vector<int64_t>{static_cast<int64_t>(Length())} ||
          delivery.dead != (step_ % 11 == 0)) {
        world_->complaints_.Add(Here() + " arrived with another type or shape");
      }
    } else {
      if (delivery.status.code() == Code::kInternal || delivery.status.message().empty()) {
        world_->complaints_.Add(Here() +
                                " failed without a sentence: " + delivery.status.message());
      }
      world_->FailStep(step_, Here() + ": " + delivery.status.message());
      if (delivery.status.code() == Code::kAborted) world_->OnAborted(*this, delivery);
    }
    delivery_ = std::move(delivery);
    Check("arrived");
    done_.store(true);
  }
  void OnUseGrpc(const std::string&) override {
    if (asks_.fetch_add(1) != 0) world_->complaints_.Add(Here() + " was sent to gRPC twice");
    world_->grpc_.Fetch({step_, edge_}, std::static_pointer_cast<ChaosReceive>(shared_from_this()));
  }
  char* Destination(uint64_t bytes) override {
    if (!brings_memory_) return nullptr;
    memory_ = std::make_unique<ChaosPayload>(&Receiver(), "", bytes);
    return memory_->data();
  }
  void ByGrpcArrived() {
    if (!Claim()) return;
    Receiver().endpoint().RemoveRecv(step_, KeyAt(edge_spec_, step_), this);
    Sender().endpoint().Fetched(step_, KeyAt(edge_spec_, step_));
    world_->by_grpc_.fetch_add(1);
    done_.store(true);
  }
  // The step ended: true if nobody will deliver any more.
  bool Abort() {
    if (!Claim()) return false;
    Receiver().endpoint().RemoveRecv(step_, KeyAt(edge_spec_, step_), this);
    done_.store(true);
    return true;
  }

  bool done() const { return done_.load(); }
  bool asked_grpc() const { return asks_.load() != 0; }
  int64_t step() const { return step_; }
  size_t task() const { return edge_spec_.to; }
  bool holds() const { return delivery_.status.ok() && delivery_.data != nullptr; }
  // Once it is done.
  void Check(const char* when) {
    if (!holds()) return;
    if (!Matches(delivery_.data, delivery_.bytes, ContentOf(step_, edge_))) {
      world_->complaints_.Add(Here() + " had other bytes when it " + when + ", by path " +
                              ModeName(delivery_.mode) + ": " +
                              Difference(delivery_.data, delivery_.bytes, ContentOf(step_, edge_)));
    }
  }
  void LetGo() { delivery_ = Delivery(); }
  std::string Here() const {
    return Name(step_, edge_) + " (" + std::to_string(Length()) + " bytes, asks " +
           std::to_string(asks_.load()) + (claimed() ? ", claimed)" : ")");
  }

 private:
  Task& Receiver() const { return world_->tasks_[edge_spec_.to]->task(); }
  Task& Sender() const { return world_->tasks_[edge_spec_.from]->task(); }
  size_t Length() const { return edge_spec_.SizeAt(step_); }

  ChaosWorld* const world_;
  const int64_t step_;
  const size_t edge_;
  const ChaosEdge& edge_spec_;
  const bool brings_memory_;
  std::atomic<int> deliveries_{0};
  std::atomic<int> asks_{0};
  std::atomic<bool> done_{false};
  std::unique_ptr<ChaosPayload> memory_;
  Delivery delivery_;
};

// --- gRPC ---

bool ChaosGrpc::Put(const Key& key) {
  std::shared_ptr<ChaosReceive> waiting;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!there_.insert(key).second) return false;
    const auto found = asked_.find(key);
    if (found != asked_.end()) waiting = found->second;
  }
  if (waiting != nullptr) waiting->ByGrpcArrived();
  return true;
}

void ChaosGrpc::Fetch(const Key& key, const std::shared_ptr<ChaosReceive>& receive) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (there_.count(key) == 0) {
      asked_[key] = receive;
      return;
    }
  }
  receive->ByGrpcArrived();
}

void ChaosGrpc::EndStep(int64_t step) {
  std::vector<std::shared_ptr<ChaosReceive>> gone;
  std::lock_guard<std::mutex> lock(mu_);
  for (auto it = asked_.begin(); it != asked_.end();) {
    if (it->first.first == step) {
      gone.push_back(std::move(it->second));
      it = asked_.erase(it);
    } else {
      ++it;
    }
  }
}

// --- The world ---

ChaosWorld::ChaosWorld(const ChaosPlan& plan) : plan_(plan) {
  std::mt19937_64 random(plan.seed);
  Settings settings = TestSettings();
  constexpr uint64_t kArenas[] = {8, 16, 64};
  settings.arena_size = kArenas[random() % 3] << 20;
  settings.zero_copy = random() % 2 == 0;
  settings.static_edges = random() % 4 != 0;
  settings.allow_fallback = random() % 4 != 0;
  settings.inline_max = random() % 2 == 0 ? 0 : 4096;
  settings.peer_timeout = 60 * kSecond;
  if (plan.stops) {
    constexpr Nanos kConnectTimeouts[] = {20 * kMillisecond, 300 * kMillisecond, 10 * kSecond};
    settings.connect_timeout = kConnectTimeouts[random() % 3];
    settings.peer_timeout = 300 * kMillisecond;
  }
  const size_t count = 2 + random() % 2;
  for (size_t i = 0; i < count; ++i) {
    Faults faults;
    faults.seed = random();
    faults.card = plan.card;
    faults.chance(Fault::kLate) = static_cast<int>(random() % 3) * 1500;
    faults.chance(Fault::kShortPoll) = static_cast<int>(random() % 3) * 2000;
    faults.chance(Fault::kWakeUp) = 300;
    if (plan.refusals) {
      for (const Fault fault : {Fault::kOpen, Fault::kAllocate, Fault::kConnect, Fault::kShare,
                                Fault::kMap, Fault::kNotify, Fault::kRead, Fault::kWrite}) {
        faults.chance(fault) = static_cast<int>(random() % 3) * 150;
      }
      faults.chance(Fault::kReadEnd) = static_cast<int>(random() % 3) * 100;
    }
    if (plan.breaks) {
      faults.chance(Fault::kBreak) = 20 + static_cast<int>(random() % 60);
      faults.chance(Fault::kWriteEnd) = static_cast<int>(random() % 3) * 50;
    }
    if (plan.stops) {
      faults.chance(Fault::kStall) = 20;
      faults.longest_stall = 600 * kMillisecond;  // less than a card waits for its peer to part
      faults.most_stalls = 4;
    }
    tasks_.push_back(std::make_unique<FaultyTask>("/job:" + std::to_string(i), settings, faults));
  }
  MakeEdges(&random);
}

ChaosWorld::~ChaosWorld() {
  for (auto& task : tasks_) task->task().Stop();
  held_.clear();
}

void ChaosWorld::MakeEdges(std::mt19937_64* random) {
  constexpr size_t kSizes[] = {0, 1, 64, 4095, 4097, 40000, 65536, 300000, 1 << 21};
  const size_t count = 3 + (*random)() % 5;
  for (size_t i = 0; i < count; ++i) {
    ChaosEdge edge;
    edge.from = (*random)() % tasks_.size();
    edge.to = (edge.from + 1 + (*random)() % (tasks_.size() - 1)) % tasks_.size();
    edge.key = "/job:" + std::to_string(edge.from) + ";1;/job:" + std::to_string(edge.to) +
               ";edge_" + std::to_string(i);
    const size_t shapes = (*random)() % 3 == 0 ? 1 + (*random)() % 4 : 1;
    for (size_t s = 0; s < shapes; ++s) edge.sizes.push_back(kSizes[(*random)() % 9]);
    edge.in_arena = (*random)() % 2 == 0;
    edge.is_mutable = (*random)() % 4 == 0;
    edge.blocks_until_release = (*random)() % 8 == 0;
    edge.own_suffix = (*random)() % 4 == 0;
    edges_.push_back(edge);
    if ((*random)() % 4 != 0) continue;
    PlannedEdge planned;
    planned.spec = {edge.key, kType, {static_cast<int64_t>(edge.sizes[0])}, edge.sizes[0]};
    Task& from = *tasks_[edge.from];
    Task& to = *tasks_[edge.to];
    if (edge.sizes[0] > 0) {
      planned.pools.push_back(from.runtime().slots()->Reserve(edge.key, edge.sizes[0], 2));
    }
    from.PeerTo(to)->Connect(Task::CallTo(to));
    from.PeerTo(to)->Plan("graph", {planned});
  }
}

uint64_t ChaosWorld::Breaks() {
  uint64_t breaks = 0;
  for (auto& task : tasks_) breaks += task->device().breaks();
  return breaks;
}

void ChaosWorld::FailStep(int64_t number, const std::string& why) {
  std::lock_guard<std::mutex> lock(mu_);
  last_failure_ = why;
  const auto found = steps_.find(number);
  if (found != steps_.end()) found->second->failed.store(true);
}

std::shared_ptr<ChaosWorld::Step> ChaosWorld::Find(int64_t number) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = steps_.find(number);
  return found == steps_.end() ? nullptr : found->second;
}

void ChaosWorld::AbortOn(size_t task, Step* step) {
  if (step->aborted[task].exchange(true)) return;
  step->failed.store(true);
  tasks_[task]->task().endpoint().AbortStep(step->number, ErrorOf(step->number));
}

// Who waits for a tensor of a task that failed fails too, and so the step ends everywhere.
void ChaosWorld::OnAborted(const ChaosReceive& receive, const Delivery& delivery) {
  const std::shared_ptr<Step> step = Find(receive.step());
  if (step == nullptr) return;
  if (!step->fails.load() || delivery.error != ErrorOf(step->number)) {
    complaints_.Add(receive.Here() + " was aborted for no reason: " + delivery.error);
  }
  AbortOn(receive.task(), step.get());
}

void ChaosWorld::SendOne(Step* step, size_t index) {
  const ChaosEdge& edge = edges_[index];
  Task& from = *tasks_[edge.from];
  Task& to = *tasks_[edge.to];
  const size_t length = edge.SizeAt(step->number);
  auto payload = std::make_shared<ChaosPayload>(edge.in_arena ? &from : nullptr, edge.key, length);
  Fill(payload->data(), length, ContentOf(step->number, index));
  const std::string key = KeyAt(edge, step->number);
  const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
  Outgoing tensor;
  tensor.step = step->number;
  tensor.key = key;
  tensor.dtype = kType;
  tensor.dead = step->number % 11 == 0;
  tensor.dims = dims.data();
  tensor.rank = 1;
  tensor.data = payload->data();
  tensor.bytes = length;
  tensor.owner = OwnerRef::Holding(payload);
  tensor.mutable_source = edge.is_mutable;
  tensor.blocks_until_release = edge.blocks_until_release;
  ChaosByGrpc fallback(this, step->number, index, payload);
  const Status sent = from.PeerTo(to)->Send(std::move(tensor), Task::CallTo(to), &fallback);
  if (edge.is_mutable) payload->Overwrite(0xaa);
  if (sent.ok()) return;
  FailStep(step->number, Name(step->number, index) + ": " + sent.message());
  // Where the step must end everywhere, the failing send ends it as any other operation does.
  if (step->fails.load()) AbortOn(edge.from, step);
  if (sent.code() == Code::kInternal || sent.message().empty()) {
    complaints_.Add(Name(step->number, index) +
                    " was refused without a sentence: " + sent.message());
  }
}

void ChaosWorld::ReceiveOne(Step* step, size_t index) {
  const ChaosEdge& edge = edges_[index];
  Task& from = *tasks_[edge.from];
  Task& to = *tasks_[edge.to];
  auto receive = std::make_shared<ChaosReceive>(this, step->number, index,
                                                /*brings_memory=*/step->number % 3 == 0);
  step->receives.push_back(receive);
  to.endpoint().Receive(to.PeerTo(from), step->number, KeyAt(edge, step->number), receive,
                        Task::CallTo(from));
}

void ChaosWorld::Finish(Step* step, bool abort) {
  const auto over = [&] {
    return abort || (step->failed.load() && (Faulty() || !step->fails.load()));
  };
  // An operation that fails must end the step everywhere, unless another error does.
  const auto ended = [&](const ChaosReceive& receive) {
    return step->aborted[receive.task()].load() || (step->fails.load() && receive.asked_grpc());
  };
  for (const auto& receive : step->receives) {
    if (!Within([&] { return receive->done() || ended(*receive) || over(); })) {
      complaints_.Add(receive->Here() + " was never delivered");
      step->failed.store(true);
    }
  }
  for (const auto& receive : step->receives) {
    if (receive->done() || receive->Abort()) continue;
    if (!Within([&] { return receive->done(); })) {
      complaints_.Add(receive->Here() + " was claimed and never delivered");
    }
  }
}

void ChaosWorld::RunStep(int64_t number, std::mt19937_64* random, bool whole, bool* succeeded) {
  auto step = std::make_shared<Step>();
  step->number = number;
  {
    std::lock_guard<std::mutex> lock(mu_);
    steps_[number] = step;
  }
  std::vector<std::pair<bool, size_t>> actions;  // send or receive, edge
  for (size_t edge = 0; edge < edges_.size(); ++edge) {
    if (!whole && (*random)() % 4 == 0) continue;
    actions.emplace_back(true, edge);
    actions.emplace_back(false, edge);
  }
  std::shuffle(actions.begin(), actions.end(), *random);
  const bool abort = !whole && (*random)() % 6 == 0;
  const size_t until = abort ? (*random)() % (actions.size() + 1) : actions.size();
  const bool fails = !whole && !abort && (*random)() % 4 == 0;
  const size_t failing = (*random)() % tasks_.size();
  const size_t fails_at = (*random)() % (actions.size() + 1);
  step->fails.store(fails);
  for (size_t i = 0; i <= until; ++i) {
    if (fails && i == fails_at) AbortOn(failing, step.get());
    if (i == until) break;
    const auto& [sends, edge] = actions[i];
    if (step->aborted[sends ? edges_[edge].from : edges_[edge].to].load()) continue;
    if (sends) {
      SendOne(step.get(), edge);
    } else {
      ReceiveOne(step.get(), edge);
    }
  }
  Finish(step.get(), abort);
  for (auto& task : tasks_) task->task().endpoint().EndStep(number);
  grpc_.EndStep(number);
  // What an aborted step still sends surfaces nowhere.
  for (size_t i = until; i < actions.size(); ++i) {
    if (actions[i].first) SendOne(step.get(), actions[i].second);
  }
  if (step->failed.load()) failed_.fetch_add(1);
  if (succeeded != nullptr) *succeeded = !step->failed.load();
  std::vector<std::shared_ptr<ChaosReceive>> gone;
  std::lock_guard<std::mutex> lock(mu_);
  steps_.erase(number);
  for (auto& receive : step->receives) {
    if (receive->holds()) held_.push_back(std::move(receive));
  }
  while (held_.size() > kMaxHeld) {
    std::swap(held_[(*random)() % held_.size()], held_.front());
    held_.front()->Check("was let go");
    held_.front()->LetGo();
    gone.push_back(std::move(held_.front()));
    held_.pop_front();
  }
}

void ChaosWorld::RunSteps(int thread) {
  std::mt19937_64 random(plan_.seed * 31 + static_cast<uint64_t>(thread));
  for (int i = 0; i < kStepsPerThread && complaints_.Get().empty(); ++i) {
    RunStep(next_step_.fetch_add(1), &random, /*whole=*/false, nullptr);
    if (thread == 0 && i == kStepsPerThread / 2) {
      for (auto& task : tasks_) task->task().endpoint().Unplan("graph");
    }
  }
}

void ChaosWorld::Run() {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back([this, t] { RunSteps(t); });
  for (auto& thread : threads) thread.join();
  if (!complaints_.Get().empty()) return;
  for (auto& task : tasks_) task->dice().Calm();
  // After faults new links work, though not at once: who found none waits before he tries again.
  std::mt19937_64 random(plan_.seed);
  bool succeeded = false;
  const bool works = Within([&] {
    LetGoOfAll();  // they may fill a small arena
    RunStep(next_step_.fetch_add(1), &random, /*whole=*/true, &succeeded);
    return succeeded || !complaints_.Get().empty();
  });
  if (!works) complaints_.Add("without faults steps fail all the same");
  if (!complaints_.Get().empty()) return;
  CheckQuiet();
  CheckEverythingIsBack();
}

void ChaosWorld::LetGoOfAll() {
  for (auto& receive : held_) {
    receive->Check("was let go");
    receive->LetGo();
  }
  held_.clear();
}

void ChaosWorld::CheckQuiet() {
  LetGoOfAll();
  for (size_t i = 0; i < tasks_.size(); ++i) {
    Endpoint& endpoint = tasks_[i]->task().endpoint();
    const std::string here = "task " + std::to_string(i) + ": ";
    if (endpoint.unclaimed_tensors() != 0)
      complaints_.Add(here + "arrivals are kept for ended steps");
    uint64_t outstanding = 0;
    if (!Within([&] {
          outstanding = 0;
          for (const PeerStats& peer : endpoint.Stats()) outstanding += peer.outstanding;
          return outstanding == 0;
        })) {
      complaints_.Add(here + std::to_string(outstanding) +
                      " outstanding buffers were not released");
    }
    uint64_t busy = 0;
    if (!Within([&] {
          std::vector<EdgeReport> edges;
          endpoint.ReportEdges(&edges);
          busy = 0;
          for (const EdgeReport& edge : edges) busy += edge.busy;
          return busy == 0;
        })) {
      complaints_.Add(here + std::to_string(busy) + " slots did not come back");
    }
  }
}

void ChaosWorld::CheckEverythingIsBack() {
  const Status over(Code::kAborted, "the test is over");
  for (auto& task : tasks_) task->device().BreakAll(over);
  for (size_t i = 0; i < tasks_.size(); ++i) {
    Runtime& runtime = tasks_[i]->task().runtime();
    const auto left = [&] {
      return std::vector<uint64_t>{runtime.arena()->Stats().used_bytes,
                                   runtime.receive_arena()->Stats().used_bytes,
                                   runtime.slots()->Stats().pools, runtime.slots()->Stats().blocks};
    };
    if (Within([&] { return left() == std::vector<uint64_t>(4, 0); })) continue;
    const std::vector<uint64_t> rest = left();
    complaints_.Add("task " + std::to_string(i) + " still has " + std::to_string(rest[0]) +
                    " bytes of the arena, " + std::to_string(rest[1]) + " of slots for peers, " +
                    std::to_string(rest[2]) + " pools with " + std::to_string(rest[3]) + " blocks");
  }
  const int64_t lent = GlobalCounters().outstanding_tensors.load();
  if (lent != 0) complaints_.Add(std::to_string(lent) + " tensors count as lent at the end");
}

std::string ChaosWorld::Summary() {
  std::string summary = std::to_string(tasks_.size()) + " tasks, " + std::to_string(edges_.size()) +
                        " edges; " + std::to_string(arrived_.load()) + " arrived, " +
                        std::to_string(by_grpc_.load()) + " by gRPC, " +
                        std::to_string(failed_.load()) + " steps failed, " +
                        std::to_string(Breaks()) + " breaks\n  last failure: " + last_failure_;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    summary += "\n  task " + std::to_string(i) + ": " + tasks_[i]->dice().Summary();
  }
  return summary;
}

}  // namespace rdma_transport::testing
