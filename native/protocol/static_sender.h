// The sending side of the static edges of one link.
//
// An edge is static when both sides know, before the tensor is there, its type, its shape and the
// slots in which it may lie; then a tensor needs one short notification. That is planned from the
// graph, or comes about when an edge has carried the same shape some times in a row, and ends when
// the shape changes. Whatever does not fit what was agreed takes the dynamic path.
//
// Where the receiver can map the sender's memory, the slots are addresses in the sender's arena: a
// tensor that was born there moves by not moving. Elsewhere they lie in the receiver's memory, and
// the sender writes into them.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "protocol/key_id.h"
#include "protocol/outstanding_buffers.h"
#include "protocol/send_outcome.h"
#include "protocol/static_edge.h"
#include "protocol/tensor.h"
#include "protocol/wire.h"

namespace rdma_transport {

// Thread-safe. What goes over the channel for one edge goes in the order in which it was decided,
// because the edge's lock is held until it is sent. The polling thread does not wait for that lock
// while the link is up.
class StaticSender {
 public:
  struct Context {
    fabric::Device* device;
    memory::Arena* arena;
    memory::SlotPools* slots;
    const Settings* settings;
    Traffic* traffic;  // with that peer
    // Says it to the peer sooner or later, whatever waits for room now.
    std::function<void(MessageType type, uint64_t value)> insist;
  };
  // Cookies of Write() have this bit.
  static constexpr uint64_t kCookieBit = uint64_t{1} << 63;

  StaticSender(const Context& context, fabric::Channel* channel, OutstandingBuffers* lent);
  ~StaticSender();

  // Makes the edge static at once, with the slots of its pools.
  void Offer(const PlannedEdge& planned);
  // Its graph is gone.
  void Forget(const std::string& key);

  // The link is gone: gives all pools back, and lets go of what was being written.
  void Abandon();

  // True: it was sent by its edge, or could not be, as `outcome` says. False: it is the dynamic
  // path's, perhaps staged by now.
  bool Send(Outgoing* tensor, SendOutcome* outcome);

  // What the receiver says, on the polling thread.
  Status OnSlot(const SlotMessage& message);
  Status OnCredit(uint64_t credit);
  // A write ended; its source may change from now on.
  void OnWritten(uint64_t cookie);

  void Report(std::vector<EdgeReport>* reports) const;

 private:
  struct Slot {
    const char* data = nullptr;  // at the source
    fabric::RemoteSpan span;
    uint64_t used = 0;
    uint32_t generation = 0;
    bool home = false;  // in the receiver's own memory
    bool busy = false;  // at the receiver: its credit is out
  };
  // One shape that an edge carries. What each tensor needs comes first.
  struct Variant {
    uint32_t number = 0;  // 0: not static
    uint32_t dtype = 0;
    std::vector<int64_t> dims;
    uint64_t bytes = 0;
    bool planned = false;
    bool joins_pool = false;
    uint32_t streak = 0;           // how often it came in a row
    uint32_t others = 0;           // how often others came since
    uint32_t demotions = 0;        // each one doubles the streak that the next promotion takes
    uint32_t unknown_buffers = 0;  // buffers in a row that had to be made a slot
    uint32_t no_free_slot = 0;     // how often no slot was free
    uint64_t clock = 0;
    std::vector<Slot> slots;
    std::vector<std::shared_ptr<memory::SlotPool>> pools;
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t staged_bytes = 0;
    std::string site;  // as planned, for people
  };
  // What the receiver said of a slot: that there is one more, or that it may be written again.
  struct News {
    uint32_t number = 0;  // of the edge
    size_t slot = 0;
    uint32_t generation = 0;
    bool credit = false;
    fabric::RemoteSpan span;
  };
  struct Edge {
    std::mutex mu;
    std::string key;
    std::list<Variant> variants;  // the last used one first
    std::mutex news_mu;           // after `mu`; never held for long
    std::vector<News> news;
  };

  bool AtReceiver() const;
  std::shared_ptr<Edge> EdgeOf(std::string_view key);
  void ForgetCandidatesLocked();
  Status Take(const News& news);
  // With the edge's lock.
  void Learn(Edge* edge) const;
  Status TakeSlot(const News& news, Variant* variant) const;
  static Status TakeCredit(const News& news, Variant* variant);
  Variant* VariantOf(Edge* edge, uint32_t dtype, const int64_t* dims, int rank, uint64_t bytes);
  Variant* Choose(Edge* edge, const Outgoing& tensor);
  bool Promote(const std::shared_ptr<Edge>& edge, Variant* variant);
  Status Declare(const Edge& edge, const Variant& variant, uint32_t number);
  void Demote(Variant* variant);
  bool SendFromSource(Edge* edge, Variant* variant, Outgoing* tensor, SendOutcome* outcome);
  bool SendToReceiver(Edge* edge, Variant* variant, Outgoing* tensor, SendOutcome* outcome);
  bool StageFor(Edge* edge, Variant* variant, Outgoing* tensor);
  Slot* SlotFor(Variant* variant, const Outgoing& tensor, const fabric::RemoteSpan& span,
                bool home);
  Slot* Adopt(Variant* variant, const char* data, const fabric::RemoteSpan& span, bool home);
  void FollowToSite(Variant* variant, const Outgoing& tensor);
  void AddPool(Variant* variant, std::string_view site, size_t bytes);
  void AdoptBlocks(Variant* variant, const memory::SlotPool& pool);
  Status NotifyTensor(const Variant& variant, size_t slot, uint64_t buffer_id,
                      const Outgoing& tensor, uint64_t* number);
  void Miss(Variant* variant, const char* reason);

  const Context context_;
  fabric::Channel* const channel_;
  OutstandingBuffers* const outstanding_;

  mutable std::mutex mu_;  // after an edge's
  std::unordered_map<KeyId, std::shared_ptr<Edge>, KeyIdHash> edges_;
  std::unordered_map<uint32_t, std::shared_ptr<Edge>> numbered_;
  uint32_t next_number_ = 1;
  uint64_t next_cookie_ = kCookieBit;
  std::map<uint64_t, OwnerRef> writing_;
};

}  // namespace rdma_transport
