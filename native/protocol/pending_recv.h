// Somebody who waits for one tensor. Whoever claims a pending receive first, and only he, completes
// it.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "protocol/tensor.h"

namespace rdma_transport {

class Link;

class PendingRecv : public std::enable_shared_from_this<PendingRecv> {
 public:
  virtual ~PendingRecv() = default;

  // Called once, by whoever claimed it; with no lock held; from any thread; must not block.
  virtual void OnDelivery(Delivery delivery) = 0;
  // At most once, before OnDelivery(): the tensor is not coming by the fabric alone; fetch it by
  // TensorFlow's transport, and complete this receive by Claim() when it is there.
  virtual void OnUseGrpc(const std::string& reason) = 0;
  // Where `bytes` bytes should be read to, if they must be read anyway; null: anywhere. Called by
  // whoever claimed this, before OnDelivery().
  virtual char* Destination(uint64_t /*bytes*/) { return nullptr; }

  // True for exactly one caller. Afterwards no link fails this receive any more.
  bool Claim();
  bool claimed() const;
  // True for the first caller, unless this is claimed: he calls OnUseGrpc(). A peer that is decided
  // for gRPC, and its word that a tensor waits there, may both say so.
  bool AskGrpc();

 private:
  friend class PendingRecvList;

  mutable std::mutex mu_;
  bool claimed_ = false;
  bool grpc_asked_ = false;
  class PendingRecvList* list_ = nullptr;
  uint64_t epoch_ = 0;  // of the list when it took this in
  std::list<std::shared_ptr<PendingRecv>>::iterator position_;
};

// The pending receives that fail together when a peer is lost. Lock order: a receive before its
// list.
class PendingRecvList {
 public:
  // False, and nothing kept, when the list is shut or the pending receive is claimed.
  bool Add(const std::shared_ptr<PendingRecv>& recv, Status* shut_reason);
  // Takes everything out. With a reason that is not OK, Add() refuses from now on.
  std::list<std::shared_ptr<PendingRecv>> TakeAll(const Status& shut_reason);
  void Reopen();
  size_t size() const;

 private:
  friend class PendingRecv;
  void Remove(PendingRecv* recv);

  mutable std::mutex mu_;
  std::list<std::shared_ptr<PendingRecv>> recvs_;
  uint64_t epoch_ = 0;  // how often all were taken out
  Status shut_;
};

// Claims and completes each of them with an error; the others are left alone.
void FailAll(std::list<std::shared_ptr<PendingRecv>> recvs, const Status& status);

}  // namespace rdma_transport
