#include "fabric/verbs/channel.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "base/random.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {
namespace {

// Receives reserved for credits; ring.cc explains how many credits can be in flight.
constexpr int kCreditReceives = 40;
// And for the two signals that each queue pair can cause when it fails.
constexpr int kSignalReceives = 2 * kMaxQueuePairs;
constexpr Immediate kRingCheck = {true, false, 0, 0};
constexpr size_t kMaxReason = 1024;  // maximum length of the reason for closing a channel, in bytes

}  // namespace

VerbsChannel::VerbsChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler,
                           uint32_t tag)
    : device_(device),
      handler_(std::move(handler)),
      tag_(tag),
      token_(RandomBytes(kTokenLength)),
      outbox_([this](Work work) { Push(work); }),
      writes_(device->lanes_of_writes()),
      reads_(device->lanes_of_reads()) {}

VerbsChannel::~VerbsChannel() {
  SettlePending();
  windows_.Clear();
  pairs_.clear();  // before the memory that they write
}

// --- Connecting ---

Status VerbsChannel::Open() {
  const VerbsSettings& settings = device_->adapter().settings();
  // A device with shorter queues gets fewer batches, so that each batch still has a receive.
  const std::vector<Adapter*> adapters = device_->ports();
  credit_receives_ = kCreditReceives + (adapters.size() > 1 ? kSignalReceives : 0);
  depth_ = settings.queue_depth;
  for (const Adapter* adapter : adapters) {
    depth_ = std::min(depth_, adapter->port().attributes.max_qp_wr - credit_receives_);
  }
  depth_ = std::max(depth_, 1);
  RDMA_RETURN_IF_ERROR(inbox_.Open(settings.ring, static_cast<uint32_t>(depth_)));
  return ports_.Open(adapters, *inbox_.ring().memory, {depth_, depth_ + credit_receives_, tag_},
                     &windows_);
}

std::string VerbsChannel::Address() const {
  ChannelAddress address = ports_.address();
  address.ring_size = inbox_.first_size();
  address.ring_limit = inbox_.limit();
  address.most_batches = static_cast<uint32_t>(depth_);
  address.token = token_;
  return address.Encode();
}

Status VerbsChannel::Connect(std::string_view peer_address, Role role) {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(peer_address, &peer));
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kNew) {
    return Status(Code::kAborted, "the channel was closed: " + close_reason_.message());
  }
  passive_ = role == Role::kPassive;
  if (passive_) RDMA_RETURN_IF_ERROR(ChargePending(peer.ring_size));
  ChannelPorts::Matched matched;
  RDMA_RETURN_IF_ERROR(ports_.Match(peer, role, &windows_, &matched));
  pairs_ = std::move(matched.pairs);
  targets_ = std::move(matched.targets);
  states_.resize(pairs_.size());
  inbox_.set_registrations(std::move(matched.rings));
  Outbox::Ends ends = {};
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const ChannelAddress::Port& port = peer.ports[peer.queue_pairs[targets_[i]].port];
    if (pairs_[i]->receives() && port.known) ends[i] = {port.ring_address, port.ring_rkey, 1};
  }
  peer_ = std::move(peer);
  const ChannelAddress::Port& peer_port = peer_.ports[peer_.queue_pairs[targets_.front()].port];
  RDMA_RETURN_IF_ERROR(outbox_.Attach(main().adapter(), peer_, ends, main_));
  greeting_ = Greeting(key_, role, token_, peer_.token);
  DescribeRoute();
  BeginRails();
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (states_[i].phase == PairState::Phase::kDown) continue;
    RDMA_RETURN_IF_ERROR(pairs_[i]->Replenish());
    const Status connected = pairs_[i]->Connect(peer_, targets_[i]);
    if (connected.ok()) continue;
    if (!IsFurther(i)) return Status(connected.code(), connected.message() + " (" + route_ + ")");
    LeaveAtFirst(i, connected);
  }
  state_.store(State::kConnecting);
  // Everything that this side sends follows the bindings, so a peer that has received anything may
  // write.
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (states_[i].phase != PairState::Phase::kDown) BindWindow(kRingKey, i);
  }
  check_due_ = true;
  if (!passive_ && !peer_port.ring_window) return Greet(RecordKind::kHello);
  if (!passive_) outbox_.SendCredit(kRingCheck);
  Pump();
  return OkStatus();
}

Status VerbsChannel::Greet(RecordKind kind) {
  check_due_ = false;
  const std::string& shown = greeting_.own();
  const iovec part = {const_cast<char*>(shown.data()), shown.size()};
  return AddRecord(kind, &part, 1, 0, /*signaled=*/true);
}

// Any process can request a channel, and chooses the size of its ring.
Status VerbsChannel::ChargePending(uint64_t peer_ring) {
  const auto bytes = static_cast<int64_t>(peer_ring + inbox_.first_size());
  if (!device_->adapter().ChargePending(bytes)) {
    return Status(Code::kResourceExhausted,
                  "too much memory waits for peers that have not connected yet; try again later");
  }
  pending_bytes_ = bytes;
  return OkStatus();
}

void VerbsChannel::SettlePending() {
  device_->adapter().ChargePending(-std::exchange(pending_bytes_, 0));
}

std::string VerbsChannel::Route() const {
  std::lock_guard<std::mutex> lock(mu_);
  std::string route = route_;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    if (IsFurther(i) && pairs_[i]->takes_shares()) route += ", " + pairs_[i]->adapter()->Name();
  }
  return route;
}

Status VerbsChannel::HandleGreeting(RecordKind kind, std::string_view shown) {
  if (state_.load() != State::kConnecting || passive_ != (kind == RecordKind::kHello)) {
    return Status(Code::kDataLoss, "a greeting at a wrong time");
  }
  if (!greeting_.IsPeers(shown)) {
    return Status(Code::kPermissionDenied, "the peer did not prove that it is the one asked for");
  }
  const auto handler = handler_.lock();
  if (handler == nullptr) return Status(Code::kCancelled, "the user of this channel has gone");
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() != State::kConnecting) return OkStatus();
    if (passive_) RDMA_RETURN_IF_ERROR(Greet(RecordKind::kAccept));
    state_.store(State::kConnected);
    SettlePending();
    for (size_t i = 0; i < pairs_.size() && !passive_; ++i) {
      if (states_[i].phase == PairState::Phase::kUntested) TestPair(i);
      const bool left = states_[i].phase == PairState::Phase::kDown && pairs_[i]->number() != 0;
      if (left) device_->ProbeAt(tag_, states_[i].due);
    }
  }
  greeted_ = true;
  handler->OnConnected();
  return OkStatus();
}

// --- Notifications out ---

Status VerbsChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                            After after) {
  if (state_.load(std::memory_order_acquire) != State::kConnected || !device_->adapter().Usable()) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  const bool wake = urgency == Urgency::kWake;
  RDMA_RETURN_IF_ERROR(SendAfter(after, RecordKind::kNotification, parts, count, notified_ + 1,
                                 /*signaled=*/wake));
  ++notified_;
  if (number != nullptr) *number = notified_;
  return OkStatus();
}

// A signaled record is sent at once, together with all delayed records. Other records are delayed
// until the polling thread sends them. It is called before the look at whether it sleeps: it looks
// for calls after it has said that it sleeps.
Status VerbsChannel::AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number,
                               bool signaled) {
  RDMA_RETURN_IF_ERROR(outbox_.Add(kind, parts, count, number, signaled));
  if (!signaled) Attend();
  if (signaled || device_->asleep()) {
    outbox_.Close();
    Pump();
  }
  if (outbox_.WaitsForRoom()) Attend();
  return OkStatus();
}

// A batch is posted after the earlier writes on other queue pairs have ended.
void VerbsChannel::Push(Work work) {
  if (work.kind == Work::Kind::kBatch) {
    work.after = transfers_.begun();
    work.after[main_] = transfers_.ended()[main_];  // its own queue pair keeps the order
  }
  main().Push(work);
}

void VerbsChannel::Pump() {
  for (size_t i = pairs_.size(); i-- > 0 && state_.load() != State::kBroken;) {
    if (!pairs_[i]->HasWaiting()) continue;
    const Status posted = pairs_[i]->Pump(transfers_.ended());
    if (!posted.ok() && !FailPair(i, posted)) BreakLocked(posted);
  }
}

Status VerbsChannel::Flush() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return Status(Code::kUnavailable, "the channel is not connected");
  outbox_.Close();
  Pump();
  return OkStatus();
}

bool VerbsChannel::NeedsProbes() const {
  std::lock_guard<std::mutex> lock(mu_);
  return Serving(state_.load()) &&
         (outbox_.WaitsForRoom() || std::any_of(states_.begin(), states_.end(), [](const auto& s) {
            return s.phase == PairState::Phase::kFailed;
          }));
}

Nanos VerbsChannel::Probe(Nanos now) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return now;
  AdvanceRails(now);
  if (main().AnswerDue()) return now;
  if (!outbox_.WaitsForRoom() && now - answered_at_ < device_->keepalive()) {
    return answered_at_ + device_->keepalive();
  }
  answered_at_ = now;  // if not, the probe fails
  Work nothing;
  nothing.signaled = true;
  main().Push(nothing);
  Pump();
  return now + device_->keepalive();
}

// --- Memory ---

Status VerbsChannel::Share(uint64_t key) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (shared_.count(key) != 0) return OkStatus();
  }
  RegionRecord record = {};
  Registrations memory;
  // Call without the lock, because it may pin pages.
  RDMA_RETURN_IF_ERROR(device_->memory().Describe(key, &record, &memory));
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  if (shared_.count(key) != 0) return OkStatus();
  const Registrations of_pairs = ByPair(memory);
  if (of_pairs[main_] == nullptr) {
    return Status(Code::kResourceExhausted,
                  "memory is not registered with " + main().adapter()->Name());
  }
  RDMA_RETURN_IF_ERROR(windows_.Make(key, of_pairs));
  for (size_t i = 0; i < pairs_.size(); ++i) BindWindow(key, i);
  const Status added = SendRegion(record, of_pairs);
  if (added.ok()) {
    shared_[key] = {record, std::move(memory)};
  } else {
    windows_.Revoke(key);
  }
  return added;
}

// Pushed before all later work on the queue pair, and before all batches.
void VerbsChannel::BindWindow(uint64_t key, size_t i) {
  Work work;
  work.kind = Work::Kind::kBind;
  work.signaled = true;
  work.window = windows_.Of(key, i);
  if (work.window == nullptr) return;
  windows_.OnBinding(work.window);
  transfers_.BeginBind(i);
  pairs_[i]->Push(work);
}

// `memory` is by queue pair.
Status VerbsChannel::SendRegion(RegionRecord record, const Registrations& memory) {
  std::vector<RegionEnd> ends(memory.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i] == nullptr) continue;
    const Window* window = windows_.Of(record.key, i);
    ends[i] = {memory[i]->iova(), window == nullptr ? memory[i]->rkey() : window->rkey(),
               memory[i]->far() ? kUsableFar : kUsable};
  }
  record.ends = static_cast<uint32_t>(ends.size());
  const iovec parts[] = {{&record, sizeof(record)}, {ends.data(), ends.size() * sizeof(ends[0])}};
  return AddRecord(RecordKind::kRegion, parts, 2, 0, /*signaled=*/false);
}

void VerbsChannel::ForgetRegion(uint64_t key) {
  std::lock_guard<std::mutex> lock(mu_);
  windows_.Revoke(key);
  if (shared_.erase(key) == 0 || state_.load() != State::kConnected) return;
  const iovec part = {&key, sizeof(key)};
  // If the notification is lost, the peer uses a key that the card refuses.
  AddRecord(RecordKind::kForget, &part, 1, 0, /*signaled=*/false).IgnoreError();
}

bool VerbsChannel::Locate(const void* data, RemoteSpan* span) const {
  return device_->adapter().Usable() && device_->memory().Locate(data, span);
}

// --- One-sided operations ---

Backlog VerbsChannel::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  Backlog backlog = outbox_.backlog();
  backlog.waiting_bytes += writes_.note_bytes();
  return backlog;
}

Status VerbsChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  return Transfer(Work::Kind::kRead, source, destination, cookie);
}

Status VerbsChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Transfer(Work::Kind::kWrite, destination, const_cast<char*>(source), cookie);
}

Status VerbsChannel::Transfer(Work::Kind kind, const RemoteSpan& span, char* local,
                              uint64_t cookie) {
  const bool write = kind == Work::Kind::kWrite;
  Work work;
  work.kind = kind;
  work.cookie = cookie;
  work.local = local;
  LocalEnds ends;
  Status refused = device_->memory().FindLocal(local, span.length, &ends);
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  const Transfers::PeerRegion* region = nullptr;
  if (refused.ok()) refused = transfers_.Aim(span, kind, &region);
  if (refused.ok() && (!ends[main().port()].usable || region->ends[main_].usable == 0)) {
    refused = Status(Code::kResourceExhausted,
                     "memory is not registered with " + main().adapter()->Name());
  }
  if (!refused.ok()) {
    if (write) return refused;
    transfers_.Refuse(cookie, refused);
    Attend();
    device_->Wake();
    return OkStatus();
  }
  Lane& lane = LaneOf(kind);
  if (Lane::Takes(span.length, Piece(/*lanes=*/1))) {
    lane.Add({work, span, ends});
    AdvanceLane(&lane);
  } else {
    transfers_.Begin(work, Transfers::Part::kWhole, span, *region, ends, device_->chunk(), pairs_,
                     main_);
  }
  // With one queue pair, the write is posted together with the notification that follows it.
  if (!write || pairs_.size() > 1 || !lane.empty()) Pump();
  return OkStatus();
}

// --- Completions ---

int VerbsChannel::OnCompletion(const ibv_wc& completion) {
  if (completion.status == IBV_WC_SUCCESS) answered_at_ = device_->polled_at();
  // If the card itself broke a queue pair, its asynchronous event gives the reason.
  if (IsFlush(completion.status) && Serving(state_.load())) device_->HandleDescriptors();
  if (QueuePair::IsReceive(completion.wr_id)) return OnReceive(completion);
  OnSent(completion);
  return DeliverNews() ? 1 : 0;
}

void VerbsChannel::OnSent(const ibv_wc& completion) {
  std::lock_guard<std::mutex> lock(mu_);
  const uint32_t tag = QueuePair::TagOf(completion.wr_id);
  const size_t index = IndexOf(tag);
  if (index == pairs_.size()) return;
  Work work;
  bool itself = false;
  const bool failed = completion.status != IBV_WC_SUCCESS;
  bool known = false;
  while (pairs_[index]->TakeEnded(completion.wr_id, &work, &itself)) {
    known = itself;
    if (itself && failed) break;
    if (work.consumes_receive()) ++states_[index].confirmed;
    if (work.kind == Work::Kind::kBatch) {
      outbox_.OnWritten(work);
      delivered_ = outbox_.Delivered();
    } else if (work.kind == Work::Kind::kBind) {
      windows_.OnBound(work.window);
      transfers_.EndBind(index);
    } else if (work.last) {
      transfers_.OnEnded(index, work);
      LaneOf(work.kind).OnEnded(work.share);
    }
    if (itself) break;
  }
  if (!failed) AdvanceLanes();
  if (OnPairCompletion(index, completion, work, known)) return Pump();
  if (failed) {
    if (IsFlush(completion.status)) {
      ++flushed_;
      if (state_.load() == State::kBroken) return;
    } else if (MayBeThePort(completion.status)) {
      pairs_[index]->adapter()->NoteFailure(device_->polled_at());
    }
    BreakLocked(CompletionError(completion.status, completion.vendor_err, NameOf(work), route_));
    return;
  }
  Pump();
}

int VerbsChannel::OnReceive(const ibv_wc& completion) {
  size_t index = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    index = IndexOf(QueuePair::TagOf(completion.wr_id));
    if (index == pairs_.size() || completion.qp_num != pairs_[index]->number()) return 0;
    pairs_[index]->OnReceive();
    if (completion.status != IBV_WC_SUCCESS) {
      OnReceiveFailed(index, completion);
      return 0;
    }
    if (IsLeft(index)) return 0;  // the peer sends it again
    ++states_[index].arrived;
  }
  const Immediate immediate = Immediate::Decode(ntohl(completion.imm_data));
  Status status;
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
    status = Status(Code::kDataLoss, "the peer sent what is not part of the protocol");
  } else if (immediate.IsGone()) {
    status = Status(Code::kUnavailable, "the peer cannot go on through another port");
  } else if (immediate.IsPairDown() || immediate.IsArrived()) {
    std::lock_guard<std::mutex> lock(mu_);
    status = HandleSignal(index, immediate);
  } else if (index != main_) {
    status = Status(Code::kDataLoss, "a notification on a queue pair that carries none");
  } else if (immediate.IsRingRequest()) {
    status = OnRingRequest(immediate.units * kRingGranule);
  } else if (immediate.credit) {
    std::lock_guard<std::mutex> lock(mu_);
    status = OnCredit(immediate);
  } else if (!ignore_input_) {
    status = HandleBatch(immediate);
  }
  if (!status.ok()) ignore_input_ = true;
  std::lock_guard<std::mutex> lock(mu_);
  if (status.code() == Code::kUnavailable) {
    BreakLocked(status);  // the peer has closed the channel
  } else if (!status.ok()) {
    PartLocked(status);
  }
  if (!Serving(state_.load())) return 1;
  const Status replenished = pairs_[index]->Replenish();
  if (!replenished.ok() && !FailPair(index, replenished)) {
    BreakLocked(replenished);
    return 1;
  }
  Immediate credit;
  while (inbox_.TakeCredit(&credit)) outbox_.SendCredit(credit);
  AdvanceLanes();
  Pump();
  if (main().waiting_credits() > credit_receives_) {
    PartLocked(
        Status(Code::kDataLoss, "the peer sends on without using the room that was released"));
  }
  return 1;
}

void VerbsChannel::OnReceiveFailed(size_t i, const ibv_wc& completion) {
  if (IsFlush(completion.status)) ++flushed_;
  if (states_[i].phase == PairState::Phase::kFailed) return SettlePair(i, Now());
  if (IsLeft(i) || state_.load() == State::kBroken) return;
  const Status reason =
      CompletionError(completion.status, completion.vendor_err, "a receive", route_);
  if (!MayBeThePort(completion.status) || !FailPair(i, reason)) BreakLocked(reason);
}

// During connection setup, the first empty credit is a request, or the response to it, that checks
// whether the passive side's ring is writable. An empty write needs no key.
Status VerbsChannel::OnCredit(const Immediate& credit) {
  const bool check =
      credit.units == 0 && credit.batches == 0 && state_.load() == State::kConnecting;
  if (!check || !std::exchange(check_due_, false)) return outbox_.OnCredit(credit);
  if (!passive_) return Greet(RecordKind::kHello);
  outbox_.SendCredit(kRingCheck);
  return OkStatus();
}

Status VerbsChannel::HandleBatch(const Immediate& immediate) {
  if (immediate.Moved()) {
    std::lock_guard<std::mutex> lock(mu_);
    Inbox::Ring old;
    RDMA_RETURN_IF_ERROR(inbox_.TakeNext(&old));
    windows_.Revoke(old.key);
  }
  RDMA_RETURN_IF_ERROR(inbox_.Begin(immediate));
  while (true) {
    RecordKind kind{};
    std::string_view record;
    bool more = false;
    RDMA_RETURN_IF_ERROR(inbox_.Next(&kind, &record, &more));
    if (!more) return OkStatus();
    RDMA_RETURN_IF_ERROR(HandleRecord(kind, record));
  }
}

Status VerbsChannel::HandleRecord(RecordKind kind, std::string_view record) {
  switch (kind) {
    case RecordKind::kNotification:
      if (!greeted_) break;
      // Also deliver while closing: the peer's card has confirmed that the notification arrived.
      if (const auto handler = handler_.lock()) handler->OnNotify(record.data(), record.size());
      return OkStatus();
    case RecordKind::kRegion:
      if (!greeted_) break;
      {
        std::lock_guard<std::mutex> lock(mu_);
        return transfers_.Learn(record, pairs_.size());
      }
    case RecordKind::kForget: {
      uint64_t key = 0;
      if (record.size() != sizeof(key)) break;
      std::memcpy(&key, record.data(), sizeof(key));
      std::lock_guard<std::mutex> lock(mu_);
      transfers_.Forget(key);
      return OkStatus();
    }
    case RecordKind::kHello:
    case RecordKind::kAccept:
      return HandleGreeting(kind, record);
    case RecordKind::kRing:
      if (!greeted_) break;
      return OnRing(record);
    case RecordKind::kRingEnd:
      if (!greeted_) break;
      return OnRingEnd(record);
    case RecordKind::kMoved:
      return OkStatus();
    case RecordKind::kPairOffer:
    case RecordKind::kPairAnswer:
    case RecordKind::kPairUp:
    case RecordKind::kPairReady: {
      if (!greeted_) break;
      std::lock_guard<std::mutex> lock(mu_);
      return Serving(state_.load()) ? HandlePairRecord(kind, record) : OkStatus();
    }
    case RecordKind::kBye:
      return Status(Code::kUnavailable,
                    "the peer closed the channel: " + Printable(record, kMaxReason));
  }
  return Status(Code::kDataLoss, "an unexpected record in the ring of notifications");
}

bool VerbsChannel::DeliverNews() {
  std::vector<Transfers::Ended> ended;
  uint64_t delivered = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    ended = transfers_.TakeEnded();
    if (delivered_ != told_) delivered = told_ = delivered_;
  }
  if (ended.empty() && delivered == 0) return false;
  const auto handler = handler_.lock();
  if (handler == nullptr) return false;
  if (delivered != 0) handler->OnDelivered(delivered);
  for (const auto& transfer : ended) handler->OnTransfer(transfer.cookie, transfer.status);
  return true;
}

// --- The end ---

void VerbsChannel::Attend() {
  if (!needs_service_.exchange(true)) device_->Attend(tag_);
}

void VerbsChannel::Close(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    PartLocked(reason);
  }
  device_->Wake();
}

// Sends the reason to the peer, and breaks the channel when it has arrived.
void VerbsChannel::PartLocked(const Status& reason) {
  const State state = state_.load();
  if (state == State::kClosing || state == State::kBroken || state == State::kFinished) return;
  if (state == State::kNew) return BreakLocked(reason);
  close_reason_ = reason;
  deadline_ = Now() + kClosingTimeout;
  const iovec words = {const_cast<char*>(reason.message().data()),
                       std::min(reason.message().size(), kMaxReason)};
  SendAfter(After::Everything(), RecordKind::kBye, &words, 1, 0, /*signaled=*/true).IgnoreError();
  if (state_.load() != State::kBroken) state_.store(State::kClosing);
  Attend();
}

void VerbsChannel::Fail(const Status& reason) {
  std::lock_guard<std::mutex> lock(mu_);
  BreakLocked(reason);
}

// Only the first reason is kept.
void VerbsChannel::BreakLocked(const Status& reason) {
  const State state = state_.load();
  if (state == State::kBroken || state == State::kFinished) return;
  if (state != State::kClosing) close_reason_ = reason;
  state_.store(State::kBroken);
  deadline_ = Now() + kFlushTimeout;
  for (const auto& pair : pairs_) {
    pair->Break();
    pair->TakeWaiting();
  }
  outbox_.Drop();
  writes_.Drop();
  reads_.Drop();
  Attend();
  device_->Wake();
}

bool VerbsChannel::Service() {
  needs_service_.store(false);  // first: what is requested from here on needs another call
  if (handler_.expired()) Close(Status(Code::kCancelled, "the user of this channel has gone"));
  DeliverNews();
  bool over = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const State state = state_.load();
    if (Serving(state)) {
      outbox_.Close();
      Pump();
    }
    if (state == State::kClosing) {
      const bool sent = !gave_up_ && writes_.empty() && outbox_.AllWritten();
      if (sent || Now() > deadline_) BreakLocked(close_reason_);
      Attend();
    } else if (state == State::kBroken) {
      over = std::all_of(pairs_.begin(), pairs_.end(), [](const auto& p) { return p->Drained(); });
      over |= Now() > deadline_;
      if (!over) Attend();
    }
  }
  if (over) Finish();
  return state_.load() != State::kFinished;
}

void VerbsChannel::Finish() {
  Status reason;
  {
    std::lock_guard<std::mutex> lock(mu_);
    state_.store(State::kFinished);
    // This ends the peer's access to this memory. Windows are destroyed first, while their queue
    // pairs exist.
    windows_.Clear();
    pairs_.clear();
    states_.clear();
    shared_.clear();
    ports_.Close();
    inbox_.Close();
    SettlePending();
    reason = Status(Code::kUnavailable, close_reason_.message());
    if (flushed_ > 0) {
      Log(LogLevel::kDebug, route_ + ": " + std::to_string(flushed_) + " work requests flushed");
    }
  }
  if (const auto handler = handler_.lock()) handler->OnClosed(reason);
}

}  // namespace rdma_transport::fabric::verbs
