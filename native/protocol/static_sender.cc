#include "protocol/static_sender.h"

#include <algorithm>
#include <set>
#include <utility>

namespace rdma_transport {
namespace {

constexpr uint32_t kPromoteAfter = 2;  // tensors of one shape
constexpr size_t kMaxCandidates = 4096;

bool Same(uint32_t dtype, const std::vector<int64_t>& known, uint32_t other, const int64_t* dims,
          int rank) {
  return dtype == other && known.size() == static_cast<size_t>(rank) &&
         std::equal(known.begin(), known.end(), dims);
}

size_t HashOf(uint32_t dtype, const int64_t* dims, int rank) {
  uint64_t hash = dtype;
  for (int i = 0; i < rank; ++i) {
    hash = (hash ^ static_cast<uint64_t>(dims[i])) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

StaticSender::StaticSender(const LinkContext& context, fabric::Channel* channel,
                           ReliableNotifier* notifier, OutstandingBuffers* outstanding)
    : context_(context),
      channel_(channel),
      notifier_(notifier),
      sender_slots_(context, channel, outstanding),
      receiver_slots_(context, channel, notifier) {}

StaticSlots* StaticSender::slots() {
  if (context_.settings->zero_copy && channel_->MapsPeer()) return &sender_slots_;
  return &receiver_slots_;
}

// --- Edges and their shapes ---

std::shared_ptr<StaticSender::Edge> StaticSender::EdgeOf(std::string_view key) {
  const KeyId id = KeyId::OfEdge(key);
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = edges_.find(id);
  if (found != edges_.end()) return found->second;
  if (edges_.size() > numbered_.size() + kMaxCandidates) DropCandidatesLocked();
  auto edge = std::make_shared<Edge>();
  edge->key = std::string(key);
  edges_.emplace(id, edge);
  return edge;
}

// Keys that are used once, such as those of copies between eager tensors, must not accumulate.
void StaticSender::DropCandidatesLocked() {
  decltype(edges_) kept;
  for (const auto& [number, edge] : numbered_) kept.emplace(KeyId::OfEdge(edge->key), edge);
  edges_.swap(kept);
}

EdgeVariant* StaticSender::VariantOf(Edge* edge, uint32_t dtype, const int64_t* dims, int rank,
                                     uint64_t bytes) {
  const size_t hash = HashOf(dtype, dims, rank);
  const auto [first, last] = edge->variants.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (Same(it->second.dtype, it->second.dims, dtype, dims, rank)) return &it->second;
  }
  if (edge->variants.size() >= edge->room) {
    for (auto it = edge->variants.begin(); it != edge->variants.end();) {
      it = it->second.number == 0 ? edge->variants.erase(it) : std::next(it);
    }
    edge->room = std::max(kMinRoom, 2 * edge->variants.size());
  }
  EdgeVariant& made = edge->variants.emplace(hash, EdgeVariant())->second;
  made.dtype = dtype;
  made.dims.assign(dims, dims + rank);
  made.bytes = bytes;
  return &made;
}

bool StaticSender::Promote(const std::shared_ptr<Edge>& edge, EdgeVariant* variant,
                           uint32_t wanted) {
  uint32_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (numbered_.size() >= kMaxEdges) return false;
    number = next_number_++;
    numbered_[number] = edge;
  }
  slots()->Join(variant);
  if (!Declare(*edge, *variant, number).ok()) {
    Undeclare(variant, number);
    return false;
  }
  slots()->OnDeclared(*variant, wanted);
  variant->number = number;
  grew_.store(true, std::memory_order_relaxed);
  GlobalCounters().plan.promotions.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void StaticSender::Undeclare(EdgeVariant* variant, uint32_t number) {
  slots()->Leave(*variant);
  std::lock_guard<std::mutex> lock(mu_);
  numbered_.erase(number);
}

Status StaticSender::Declare(const Edge& edge, const EdgeVariant& variant, uint32_t number) {
  TensorHeader header = {};
  header.type = MessageType::kEdge;
  header.dtype = variant.dtype;
  header.bytes = variant.bytes;
  header.edge = {number, variant.receiver_pool};
  const TensorFrame frame(&header, variant.dims.data(), static_cast<int>(variant.dims.size()),
                          edge.key, nullptr, 0);
  return channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

void StaticSender::Demote(EdgeVariant* variant) {
  GlobalCounters().plan.demotions.fetch_add(1, std::memory_order_relaxed);
  // A peer that cannot be notified is lost, and the edge with it.
  ControlMessage message(MessageType::kRetire);
  message.edge = variant->number;
  notifier_->SendControl(message, fabric::Urgency::kLazy);
  Undeclare(variant, std::exchange(variant->number, 0));
  variant->tensors = 0;
  variant->unknown_buffers = 0;
  variant->slots.clear();
  variant->pools.clear();
}

void StaticSender::Offer(const PlannedEdge& planned) {
  const EdgeSpec& spec = planned.spec;
  if (!context_.settings->static_edges || spec.bytes == 0) return;
  if (spec.key.size() > kMaxKeyLength || spec.dims.size() > kMaxRank) return;
  const std::shared_ptr<Edge> edge = EdgeOf(spec.key);
  std::lock_guard<std::mutex> lock(edge->mu);
  if (edge->read_by_peer) return;
  EdgeVariant* variant = VariantOf(edge.get(), spec.dtype, spec.dims.data(),
                                   static_cast<int>(spec.dims.size()), spec.bytes);
  variant->offered = true;
  variant->planned = true;
  variant->site = planned.site;
  if (variant->number == 0 && !Promote(edge, variant, planned.slots)) return;
  slots()->Plan(variant, planned);
}

void StaticSender::Withdraw(const std::string& key) {
  std::shared_ptr<Edge> edge;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = edges_.find(KeyId::OfEdge(key));
    if (found == edges_.end()) return;
    edge = std::move(found->second);
    edges_.erase(found);
  }
  std::lock_guard<std::mutex> lock(edge->mu);
  for (auto& [hash, variant] : edge->variants) {
    if (variant.number != 0) Demote(&variant);
  }
  edge->variants.clear();
}

void StaticSender::Tick(Nanos now) {
  if (now < next_tick_) return;
  next_tick_ = now + memory::kTrimInterval;
  const Nanos kept = memory::KeptFor(slots()->PromisedBytes(), context_.arena->Stats().limit_bytes);
  GiveBack(grew_.exchange(false) ? now - kept : 0, now - memory::kTrimInterval);
}

void StaticSender::GiveBack(Nanos since, Nanos planned_since) {
  std::set<std::shared_ptr<Edge>> edges;  // an edge has a number for each of its shapes
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [number, edge] : numbered_) edges.insert(edge);
  }
  for (const auto& edge : edges) {
    // Who holds the lock may wait for the polling thread, and uses the edge.
    const std::unique_lock<std::mutex> lock(edge->mu, std::try_to_lock);
    if (lock.owns_lock()) DemoteUnused(edge.get(), since, planned_since);
  }
}

void StaticSender::DemoteUnused(Edge* edge, Nanos since, Nanos planned_since) {
  for (auto it = edge->variants.begin(); it != edge->variants.end();) {
    EdgeVariant& variant = it->second;
    const bool plan_gone = variant.planned && variant.plan.expired();
    const bool unused = variant.used < (plan_gone ? planned_since : since);
    if (variant.offered || variant.number == 0 || !unused) {
      ++it;
      continue;
    }
    Demote(&variant);
    it = edge->variants.erase(it);
  }
}

void StaticSender::Abandon() {
  decltype(edges_) gone;
  {
    std::lock_guard<std::mutex> lock(mu_);
    gone.swap(edges_);
    numbered_.clear();
  }
  receiver_slots_.Abandon();
  for (const auto& [id, edge] : gone) {
    std::lock_guard<std::mutex> lock(edge->mu);
    edge->variants.clear();
  }
}

// --- Tensors ---

bool StaticSender::Send(Outgoing* tensor, SendOutcome* outcome) {
  if (!context_.settings->static_edges) return false;
  const std::shared_ptr<Edge> edge = EdgeOf(WithoutSuffix(tensor->key));
  std::lock_guard<std::mutex> lock(edge->mu);
  if (edge->read_by_peer) {
    for (auto& [hash, variant] : edge->variants) {
      if (variant.number != 0) Demote(&variant);
    }
    return false;
  }
  EdgeVariant* variant =
      VariantOf(edge.get(), tensor->dtype, tensor->dims, tensor->rank, tensor->bytes);
  variant->used = Now();
  if (variant->number == 0 && !PromoteIfStable(edge, variant, tensor->plan)) return false;
  return slots()->Send(edge->key, variant, tensor, outcome);
}

bool StaticSender::PromoteIfStable(const std::shared_ptr<Edge>& edge, EdgeVariant* variant,
                                   const std::shared_ptr<const EdgePlan>& plan) {
  if (plan == nullptr) {
    return ++variant->tensors > kPromoteAfter && Promote(edge, variant, memory::kSlots);
  }
  if (!Promote(edge, variant, plan->slots)) return false;
  variant->planned = true;
  variant->plan = plan;
  variant->site = plan->site;
  slots()->Plan(variant, *plan);
  return true;
}

// The edge's lock may be held by a thread that waits for this one, the polling thread.
void StaticSender::OnReadLater(uint32_t edge) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = numbered_.find(edge);
  if (found != numbered_.end()) found->second->read_by_peer = true;
}

void StaticSender::Report(std::vector<EdgeReport>* reports) {
  std::vector<std::shared_ptr<Edge>> edges;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [key, edge] : edges_) edges.push_back(edge);
  }
  for (const auto& edge : edges) {
    std::lock_guard<std::mutex> lock(edge->mu);
    const EdgeVariant* last = nullptr;  // of those that are not static
    for (const auto& [hash, variant] : edge->variants) {
      if (variant.number == 0 && (last == nullptr || variant.used > last->used)) last = &variant;
    }
    for (const auto& [hash, variant] : edge->variants) {
      if (variant.number == 0 && &variant != last) continue;
      EdgeReport report;
      report.hits = variant.hits;
      report.misses = variant.misses;
      report.staged_bytes = variant.staged_bytes;
      report.sites = variant.site;
      report.spec = {edge->key, variant.dtype, variant.dims, variant.bytes};
      report.is_static = variant.number != 0;
      report.planned = variant.planned;
      slots()->Report(variant, &report);
      if (!variant.pools.empty()) report.sites.clear();
      for (const auto& pool : variant.pools) {
        if (!report.sites.empty()) report.sites += ", ";
        report.sites += pool->site();
      }
      reports->push_back(std::move(report));
    }
  }
}

}  // namespace rdma_transport
