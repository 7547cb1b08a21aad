#include "protocol/static_sender.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/log.h"
#include "protocol/counters.h"
#include "protocol/staging.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

constexpr uint32_t kPromoteAfter = 2;         // tensors of one shape
constexpr uint32_t kMaxUnknownBuffers = 256;  // unknown buffers in a row, which show no pattern
constexpr size_t kMaxCandidates = 4096;
constexpr int kTracedAllocations = 4096;

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

std::string CopySite(const std::string& key) { return "copy for " + key; }

}  // namespace

StaticSender::StaticSender(const LinkContext& context, fabric::Channel* channel,
                           ReliableNotifier* notifier, OutstandingBuffers* outstanding)
    : context_(context),
      channel_(channel),
      notifier_(notifier),
      outstanding_(outstanding),
      receiver_slots_(channel, notifier) {}

StaticSender::~StaticSender() = default;

bool StaticSender::AtReceiver() const {
  return !context_.settings->zero_copy || !channel_->MapsPeer();
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

StaticSender::Variant* StaticSender::VariantOf(Edge* edge, uint32_t dtype, const int64_t* dims,
                                               int rank, uint64_t bytes) {
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
  Variant& made = edge->variants.emplace(hash, Variant())->second;
  made.dtype = dtype;
  made.dims.assign(dims, dims + rank);
  made.bytes = bytes;
  return &made;
}

bool StaticSender::Promote(const std::shared_ptr<Edge>& edge, Variant* variant, uint32_t slots) {
  uint32_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (numbered_.size() >= kMaxEdges) return false;
    number = next_number_++;
    numbered_[number] = edge;
  }
  if (AtReceiver()) variant->receiver_pool = receiver_slots_.Join(variant->bytes);
  if (!Declare(*edge, *variant, number).ok()) {
    Undeclare(variant, number);
    return false;
  }
  if (AtReceiver()) receiver_slots_.Request(variant->receiver_pool, slots);
  variant->number = number;
  grew_.store(true, std::memory_order_relaxed);
  GlobalCounters().plan.promotions.fetch_add(1, std::memory_order_relaxed);
  if (!AtReceiver()) context_.slots->StartTracing(kTracedAllocations);
  return true;
}

void StaticSender::Undeclare(Variant* variant, uint32_t number) {
  if (AtReceiver()) receiver_slots_.Leave(variant->receiver_pool);
  std::lock_guard<std::mutex> lock(mu_);
  numbered_.erase(number);
}

Status StaticSender::Declare(const Edge& edge, const Variant& variant, uint32_t number) {
  TensorHeader header = {};
  header.type = MessageType::kEdge;
  header.dtype = variant.dtype;
  header.bytes = variant.bytes;
  header.edge = {number, variant.receiver_pool};
  const TensorFrame frame(&header, variant.dims.data(), static_cast<int>(variant.dims.size()),
                          edge.key, nullptr, 0);
  return channel_->Notify(frame.parts(), frame.count(), fabric::Urgency::kWake);
}

void StaticSender::Demote(Variant* variant) {
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
  Variant* variant = VariantOf(edge.get(), spec.dtype, spec.dims.data(),
                               static_cast<int>(spec.dims.size()), spec.bytes);
  variant->offered = true;
  variant->planned = true;
  variant->site = planned.site;
  if (variant->number == 0 && !Promote(edge, variant, planned.slots)) return;
  if (AtReceiver()) return;
  variant->pools = planned.pools;
  variant->joins_pool = planned.joins_pool;
  for (const auto& pool : planned.pools) AdoptBlocks(variant, *pool);
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
  const uint64_t taken =
      AtReceiver() ? receiver_slots_.PromisedBytes() : context_.slots->PromisedBytes();
  const Nanos kept = memory::KeptFor(taken, context_.arena->Stats().limit_bytes);
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
    Variant& variant = it->second;
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
  decltype(writing_) written;
  {
    std::lock_guard<std::mutex> lock(mu_);
    gone.swap(edges_);
    written.swap(writing_);
    numbered_.clear();
  }
  for (auto& [cookie, writing] : written) channel_->Keep(std::move(writing.source));
  for (const auto& [id, edge] : gone) {
    std::lock_guard<std::mutex> lock(edge->mu);
    edge->variants.clear();
  }
}

// --- Tensors ---

void StaticSender::Miss(Variant* variant, const char* reason) {
  ++variant->misses;
  GlobalCounters().plan.misses.Add(reason);
}

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
  Variant* variant =
      VariantOf(edge.get(), tensor->dtype, tensor->dims, tensor->rank, tensor->bytes);
  variant->used = Now();
  if (variant->number == 0 && !PromoteIfStable(edge, variant, tensor->plan)) return false;
  return AtReceiver() ? SendToReceiver(edge.get(), variant, tensor, outcome)
                      : SendFromSource(edge.get(), variant, tensor, outcome);
}

bool StaticSender::PromoteIfStable(const std::shared_ptr<Edge>& edge, Variant* variant,
                                   const std::shared_ptr<const EdgePlan>& plan) {
  if (plan == nullptr) {
    return ++variant->tensors > kPromoteAfter && Promote(edge, variant, memory::kSlots);
  }
  if (!Promote(edge, variant, plan->slots)) return false;
  variant->planned = true;
  variant->plan = plan;
  variant->site = plan->site;
  if (!AtReceiver() && !plan->site.empty()) AddPool(variant, plan->site, variant->bytes);
  return true;
}

bool StaticSender::StageFor(Edge* edge, Variant* variant, Outgoing* tensor) {
  const std::string site = CopySite(edge->key);
  AddPool(variant, site, tensor->bytes);
  if (!Stage(context_.arena, context_.slots, site, tensor)) return false;
  variant->staged_bytes += tensor->bytes;
  return true;
}

bool StaticSender::SendFromSource(Edge* edge, Variant* variant, Outgoing* tensor,
                                  SendOutcome* outcome) {
  fabric::RemoteSpan span;
  const bool receiver_owned = !tensor->mutable_source && channel_->Owns(tensor->data, &span);
  if (!receiver_owned && (tensor->mutable_source || !channel_->Locate(tensor->data, &span) ||
                          span.length < tensor->bytes)) {
    if (!StageFor(edge, variant, tensor) || !channel_->Locate(tensor->data, &span)) {
      Miss(variant, "no memory in the arena");
      return false;
    }
  }
  Slot* slot = SlotFor(variant, *tensor, span, receiver_owned);
  if (slot == nullptr) return false;
  slot->used = ++variant->clock;
  const uint64_t buffer_id = outstanding_->Add(std::move(tensor->owner));
  ++variant->hits;
  GlobalCounters().plan.hits.fetch_add(1, std::memory_order_relaxed);
  context_.traffic->Sent(Mode::kStatic).Add(tensor->bytes);
  outcome->mode = Mode::kStatic;
  outcome->handle = buffer_id;
  StaticMessage message = {};
  message.slot = static_cast<uint16_t>(slot - variant->slots.data());
  message.edge = variant->number;
  message.buffer_id = buffer_id;
  message.generation = slot->generation;
  outcome->status = NotifyTensor(message, *tensor, fabric::After::Nothing(), &outcome->number);
  if (!outcome->status.ok()) outstanding_->Release(buffer_id);
  return true;
}

StaticSender::Slot* StaticSender::SlotFor(Variant* variant, const Outgoing& tensor,
                                          const fabric::RemoteSpan& span, bool receiver_owned) {
  for (Slot& slot : variant->slots) {
    if (slot.data == tensor.data && slot.span.key == span.key &&
        slot.receiver_owned == receiver_owned) {
      variant->unknown_buffers = 0;
      return &slot;
    }
  }
  if (++variant->unknown_buffers > kMaxUnknownBuffers) {
    // A descriptor costs no more than agreeing on a slot for each tensor.
    Miss(variant, "its buffer address is not stable");
    return nullptr;
  }
  if (!receiver_owned) FollowToSite(variant, tensor);
  return Adopt(variant, tensor.data, span, receiver_owned);
}

// From now on the operation that allocated this buffer gets its memory from a pool.
void StaticSender::FollowToSite(Variant* variant, const Outgoing& tensor) {
  const char* block = tensor.block != nullptr ? tensor.block : tensor.data;
  if (variant->joins_pool && !variant->pools.empty() && block == tensor.data) {
    variant->joins_pool = false;
    context_.slots->Join(variant->pools.front().get(), const_cast<char*>(block));
    return;
  }
  std::string site;
  size_t bytes = 0;
  if (context_.slots->SiteOf(block, &site, &bytes)) {
    AddPool(variant, site, bytes);
  } else {
    context_.slots->StartTracing(kTracedAllocations);
  }
}

void StaticSender::AddPool(Variant* variant, std::string_view site, size_t bytes) {
  for (const auto& pool : variant->pools) {
    if (pool->site() == site && pool->bytes() == bytes) return;
  }
  if (variant->pools.size() == memory::kMaxPoolsPerEdge) return;
  // It takes blocks when the site allocates, which may be never again.
  variant->pools.push_back(context_.slots->Reserve(site, bytes, /*count=*/0));
  if (!AtReceiver()) AdoptBlocks(variant, *variant->pools.back());
}

// Agrees on all blocks of the pool in advance.
void StaticSender::AdoptBlocks(Variant* variant, const memory::SlotPool& pool) {
  if (pool.bytes() != variant->bytes) return;  // the tensor is only part of the allocation
  for (const char* block : pool.Blocks()) {
    fabric::RemoteSpan span;
    if (variant->slots.size() < memory::kMaxSlots && channel_->Locate(block, &span)) {
      Adopt(variant, block, span, /*receiver_owned=*/false);
    }
  }
}

StaticSender::Slot* StaticSender::Adopt(Variant* variant, const char* data,
                                        const fabric::RemoteSpan& span, bool receiver_owned) {
  if (!receiver_owned && !channel_->Share(span.key).ok()) return nullptr;
  Slot* slot = nullptr;
  for (Slot& known : variant->slots) {
    if (known.data == data && known.receiver_owned == receiver_owned)
      slot = &known;  // same address, mapped again
  }
  const bool made = slot == nullptr && variant->slots.size() < memory::kMaxSlots;
  if (made) slot = &variant->slots.emplace_back();
  if (slot == nullptr) {
    slot = &*std::min_element(variant->slots.begin(), variant->slots.end(),
                              [](const Slot& a, const Slot& b) { return a.used < b.used; });
  }
  slot->data = data;
  slot->span = span;
  slot->receiver_owned = receiver_owned;
  ++slot->generation;
  SlotMessage message = {};
  message.type = MessageType::kSlot;
  message.flags = receiver_owned ? kReceiverOwned : 0;
  message.slot = static_cast<uint16_t>(slot - variant->slots.data());
  message.edge = variant->number;
  message.region_key = span.key;
  message.region_offset = span.offset;
  message.generation = slot->generation;
  const iovec part = {&message, sizeof(message)};
  if (!channel_->Notify(&part, 1, fabric::Urgency::kLazy).ok()) {
    slot->data = nullptr;                 // matches no buffer
    if (made) variant->slots.pop_back();  // the receiver numbers slots by counting
    return nullptr;
  }
  GlobalCounters().plan.slot_allocations.fetch_add(1, std::memory_order_relaxed);
  return slot;
}

bool StaticSender::SendToReceiver(Edge* edge, Variant* variant, Outgoing* tensor,
                                  SendOutcome* outcome) {
  StaticMessage message = {};
  message.edge = variant->number;
  fabric::RemoteSpan place;
  const char* none = receiver_slots_.Take(variant->receiver_pool, &message.slot, &place);
  if (none != nullptr) {
    Miss(variant, none);
    return false;
  }
  fabric::RemoteSpan local;
  // What the processor copies may change afterwards, but the checksum must match what is copied.
  const bool stage = channel_->Copies()
                         ? tensor->mutable_source && context_.settings->checksum
                         : tensor->mutable_source || !channel_->Locate(tensor->data, &local) ||
                               local.length < tensor->bytes;
  if (stage && !StageFor(edge, variant, tensor)) {
    receiver_slots_.Return(variant->receiver_pool, message.slot);
    Miss(variant, "no memory in the arena");
    return false;
  }
  uint64_t cookie = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    cookie = ++next_cookie_;
    writing_[cookie] = {std::move(tensor->owner), Now()};
  }
  outcome->status = channel_->Write(tensor->data, place, cookie);
  if (!outcome->status.ok()) {
    receiver_slots_.Return(variant->receiver_pool, message.slot);
    {
      std::lock_guard<std::mutex> lock(mu_);
      tensor->owner = std::move(writing_[cookie].source);
      writing_.erase(cookie);
    }
    if (outcome->status.code() != Code::kResourceExhausted) return true;
    outcome->status = OkStatus();
    Miss(variant, "its memory cannot be registered");
    return false;
  }
  ++variant->hits;
  GlobalCounters().plan.hits.fetch_add(1, std::memory_order_relaxed);
  context_.traffic->Sent(Mode::kStatic).Add(tensor->bytes);
  if (channel_->Copies()) {
    GlobalCounters().copied_bytes.fetch_add(tensor->bytes, std::memory_order_relaxed);
  }
  outcome->mode = Mode::kStatic;
  outcome->handle = CreditOf(variant->receiver_pool, message.slot) | Trace::kCreditBit;
  outcome->status = NotifyTensor(message, *tensor, fabric::After::Write(cookie), &outcome->number);
  if (!outcome->status.ok()) receiver_slots_.ReturnWritten(variant->receiver_pool, message.slot);
  return true;
}

Status StaticSender::NotifyTensor(StaticMessage message, const Outgoing& tensor,
                                  fabric::After after, uint64_t* number) {
  message.type = MessageType::kStatic;
  message.flags = tensor.dead ? kDead : 0;
  message.step = tensor.step;
  const std::string_view suffix = tensor.key.substr(WithoutSuffix(tensor.key).size());
  if (suffix != kUsualSuffix) {
    message.flags |= kOwnSuffix;
    message.suffix_length = static_cast<uint32_t>(suffix.size());
  }
  StaticChecksum sum = {};
  if (context_.settings->checksum) {
    message.flags |= kChecked;
    sum.checksum = ChecksumOf(tensor.data, tensor.bytes);
  }
  static constexpr char kZeros[8] = {};
  const iovec parts[] = {
      {&message, sizeof(message)},
      {const_cast<char*>(suffix.data()), message.suffix_length},
      {const_cast<char*>(kZeros), (8 - message.suffix_length % 8) % 8},
      {&sum, context_.settings->checksum ? sizeof(sum) : 0},
  };
  const bool bare = message.suffix_length == 0 && !context_.settings->checksum;
  return channel_->Notify(parts, bare ? 1 : 4, fabric::Urgency::kWake, number, after);
}

// The edge's lock may be held by a thread that waits for this one, the polling thread.
void StaticSender::OnReadLater(uint32_t edge) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = numbered_.find(edge);
  if (found != numbered_.end()) found->second->read_by_peer = true;
}

void StaticSender::OnWritten(uint64_t cookie, const Status& status) {
  Writing written;  // dropped after unlocking
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = writing_.find(cookie);
  if (found == writing_.end()) return;
  written = std::move(found->second);
  writing_.erase(found);
  if (status.ok()) context_.traffic->write_time.Add(Now() - written.begin);
}

void StaticSender::Report(std::vector<EdgeReport>* reports) const {
  std::vector<std::shared_ptr<Edge>> edges;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [key, edge] : edges_) edges.push_back(edge);
  }
  for (const auto& edge : edges) {
    std::lock_guard<std::mutex> lock(edge->mu);
    const Variant* last = nullptr;  // of those that are not static
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
      report.at_receiver = AtReceiver();
      report.slots = variant.slots.size();
      if (report.at_receiver) receiver_slots_.Report(variant.receiver_pool, &report);
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
