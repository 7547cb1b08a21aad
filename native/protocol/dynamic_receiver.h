// Receives tensors that come with their bytes, or with a descriptor of the memory to read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "fabric/fabric.h"
#include "protocol/link_context.h"
#include "protocol/mailbox.h"
#include "protocol/pending_recv.h"
#include "protocol/reliable_notifier.h"
#include "protocol/wire.h"

namespace rdma_transport {

// Serves one link. Thread-safe, except where noted.
class DynamicReceiver {
 public:
  // `context` must outlive it.
  DynamicReceiver(const LinkContext& context, std::shared_ptr<fabric::Channel> channel,
                  std::shared_ptr<ReliableNotifier> notifier)
      : context_(context), channel_(std::move(channel)), notifier_(std::move(notifier)) {}

  // Sets the tensor that the notification announces, or that it waits for TensorFlow's transport.
  // Takes the dimensions out of `message`. Polling thread only.
  Status OnTensor(TensorMessage* message, Arrival* arrival);

  // Reads the bytes of `arrival` into local memory, then completes `recv`, which the caller has
  // claimed. `link` owns this.
  void ReadThenDeliver(Arrival arrival, std::shared_ptr<PendingRecv> recv,
                       std::shared_ptr<const void> link);
  // The read with this cookie has ended.
  void OnRead(uint64_t cookie, const Status& status);
  // Returns whether a receive waits for a read that may never end although the link does not break:
  // software of the peer serves it.
  bool WaitsForPeer() const;
  // The peer is silent: completes these receives with `silent`. The reads may still end later.
  void GiveUp(const Status& silent);
  // The link has ended: completes all reads with `lost`.
  void Abandon(const Status& lost);

 private:
  struct Reading {
    Delivery delivery;
    std::shared_ptr<PendingRecv> recv;  // null after GiveUp()
    Nanos begin = 0;
    OwnerRef source;  // keeps the peer's buffer until the read has ended
  };

  Status TakeInline(const TensorMessage& message, Delivery* delivery);
  void TakeDescriptor(const TensorHeader& header, Arrival* arrival);
  void ReadInto(char* wanted, Arrival arrival, std::shared_ptr<PendingRecv> recv,
                std::shared_ptr<const void> link);
  void Read(char* destination, OwnerRef memory, Arrival arrival, std::shared_ptr<PendingRecv> recv);
  bool CanReadInto(const char* destination, uint64_t bytes) const;

  const LinkContext& context_;
  const std::shared_ptr<fabric::Channel> channel_;
  const std::shared_ptr<ReliableNotifier> notifier_;

  mutable std::mutex mu_;
  std::map<uint64_t, Reading> readings_;  // by cookie
  uint64_t next_cookie_ = 1;
};

}  // namespace rdma_transport
