#include "protocol/static_slots.h"

#include "base/checksum.h"
#include "protocol/staging.h"

namespace rdma_transport {

bool StaticSlots::Miss(EdgeVariant* variant, const char* reason) {
  ++variant->misses;
  GlobalCounters().plan.misses.Add(reason);
  return false;
}

bool StaticSlots::StageFor(const std::string& key, EdgeVariant* variant, Outgoing* tensor) {
  const std::string site = "copy for " + key;
  AddPool(variant, site, tensor->bytes);
  if (!Stage(context_.arena, context_.slots, site, tensor)) return false;
  variant->staged_bytes += tensor->bytes;
  return true;
}

void StaticSlots::AddPool(EdgeVariant* variant, std::string_view site, size_t bytes) {
  for (const auto& pool : variant->pools) {
    if (pool->site() == site && pool->bytes() == bytes) return;
  }
  if (variant->pools.size() == memory::kMaxPoolsPerEdge) return;
  // It takes blocks when the site allocates, which may be never again.
  variant->pools.push_back(context_.slots->Reserve(site, bytes, /*count=*/0));
  AdoptBlocks(variant, *variant->pools.back());
}

void StaticSlots::Announce(StaticMessage message, EdgeVariant* variant, const Outgoing& tensor,
                           fabric::After after, SendOutcome* outcome) {
  ++variant->hits;
  GlobalCounters().plan.hits.fetch_add(1, std::memory_order_relaxed);
  context_.traffic->Sent(Mode::kStatic).Add(tensor.bytes);
  outcome->mode = Mode::kStatic;
  message.type = MessageType::kStatic;
  message.flags = tensor.dead ? kDead : 0;
  message.edge = variant->number;
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
  outcome->status =
      channel_->Notify(parts, bare ? 1 : 4, fabric::Urgency::kWake, &outcome->number, after);
}

}  // namespace rdma_transport
