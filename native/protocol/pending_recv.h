// An operation that waits for one tensor. Only the first caller that claims it may complete it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "protocol/tensor.h"

namespace rdma_transport {

class Link;

// Thread-safe.
class PendingRecv : public std::enable_shared_from_this<PendingRecv> {
 public:
  virtual ~PendingRecv() = default;

  // Called once, by the caller that claimed this, on any thread, with no lock held. Must not block.
  virtual void OnDelivery(Delivery delivery) = 0;
  // Called at most once, before OnDelivery(), if the fabric alone will not deliver the tensor. The
  // receive fetches it over TensorFlow's transport, and when it has the tensor calls Claim() to
  // complete itself.
  virtual void OnUseGrpc(const std::string& reason) = 0;
  // Returns where to read `bytes` bytes if they must be read anyway, or null for any memory. Called
  // by the caller that claimed this, before OnDelivery().
  virtual char* Destination(uint64_t /*bytes*/) { return nullptr; }
  // The same for memory that must be prepared first, such as an accelerator's: calls `read` once,
  // maybe later and on any thread. If `copied`, the processor must be able to write to it.
  virtual void PrepareDestination(const Delivery& delivery, bool /*copied*/,
                                  std::function<void(char* destination)> read) {
    read(Destination(delivery.bytes));
  }

  // Returns true for exactly one caller. Afterwards no link fails this receive.
  bool Claim();
  bool claimed() const;
  // Returns true for the first caller, which then calls OnUseGrpc(), and false if this is claimed.
  // Both the decision to use gRPC for the peer and a pull notice may cause the call.
  bool AskGrpc();
  bool uses_grpc() const;

  // When the receive began. Steps::Receive() calls Begin(), before anything can complete this.
  void Begin() { began_ = Now(); }
  Nanos began() const { return began_; }

 private:
  friend class PendingRecvList;

  Nanos began_ = 0;
  mutable std::mutex mu_;
  bool claimed_ = false;
  bool grpc_asked_ = false;
  class PendingRecvList* list_ = nullptr;
  uint64_t epoch_ = 0;  // the list's epoch when this was added
  std::list<std::shared_ptr<PendingRecv>>::iterator position_;
};

// The pending receives that fail together when a peer is lost. Thread-safe. Lock order: a receive
// before its list.
class PendingRecvList {
 public:
  // Returns false and sets `shut_reason` if the list is shut. A claimed receive is not added, and
  // Add() returns true.
  bool Add(const std::shared_ptr<PendingRecv>& recv, Status* shut_reason);
  // Removes and returns all receives. If `shut_reason` is not OK, Add() fails with it until
  // Reopen().
  std::list<std::shared_ptr<PendingRecv>> TakeAll(const Status& shut_reason);
  void Reopen();
  size_t size() const;

 private:
  friend class PendingRecv;
  void Remove(PendingRecv* recv);

  mutable std::mutex mu_;
  std::list<std::shared_ptr<PendingRecv>> recvs_;
  uint64_t epoch_ = 0;  // number of calls of TakeAll()
  Status shut_;
};

// Claims and completes each receive with an error; skips those that are already claimed.
void FailAll(std::list<std::shared_ptr<PendingRecv>> recvs, const Status& status);

}  // namespace rdma_transport
