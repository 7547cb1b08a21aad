// A remote task as one cluster names it: how tensors reach it, decided on first use.
//
//   idle -> resolving -> linked            tensors go by the fabric
//                     -> grpc (reason)     TensorFlow's transport carries them
//                     -> unreachable       errors until a retry
//
// Both ends decide for themselves and may disagree for a while; every mix works, because a receiver
// takes a tensor from whichever transport brings it first, and a sender that uses gRPC while a link
// to the receiver exists says so on that link (a pull notice).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/link.h"

namespace rdma_transport {

class AskingHandshake;
class Endpoint;

struct PeerStats {
  std::string local;  // the task here
  std::string task;
  std::string address;
  uint64_t incarnation = 0;
  std::string transport;  // "idle", "connecting", the fabric's name, "grpc", "unreachable"
  std::string reason;
  bool linked = false;
  bool lost = false;       // was linked once, and lost since
  uint64_t links = 0;      // that came up
  double linked_at = 0;    // when the last of them did: seconds since 1970; 0: never
  std::string last_error;  // why the last link ended, or did not come up
  const Traffic* traffic = nullptr;
  uint64_t lent = 0;  // tensors that the peer may still read here
  fabric::Backlog backlog;

  // What is known of a link that is up.
  void Describe(const Link& link);
};

class Peer {
 public:
  Peer(Endpoint* endpoint, std::string task, std::string address, Traffic* traffic)
      : endpoint_(endpoint),
        task_(std::move(task)),
        address_(std::move(address)),
        traffic_(traffic) {}

  const std::string& task() const { return task_; }
  const Traffic* traffic() const { return traffic_; }

  // Sends now, or as soon as the path is known. Returns the error that the step must see.
  Status Send(Outgoing tensor, const BootstrapCall& call, FallbackSend* fallback);
  // Sees to it that `recv` fails when the peer is lost, or is told to use gRPC.
  void Wait(const std::shared_ptr<PendingRecv>& recv, const BootstrapCall& call);
  // The same for a peer that is linked or about to be; does nothing otherwise.
  void Watch(const std::shared_ptr<PendingRecv>& recv);

  // TensorFlow's transport brought a tensor, asked for at `begin`.
  void ReceivedByGrpc(int64_t step, std::string_view key, uint64_t bytes, Nanos begin);

  // Makes those of `edges` static that have bytes, as soon as there is a link, to which it sees,
  // and again with each new one. Unplan() forgets all of them, also those that were promoted since.
  void Plan(const std::string& owner, std::vector<PlannedEdge> edges, const BootstrapCall& call);
  void Unplan(const std::string& owner);

  // The endpoint's: a tensor that was sent on a link that broke, and may not have arrived, goes by
  // gRPC, or fails its step where that is forbidden.
  void SendLost(UnackedTensor lost);
  // The endpoint's: a link to this task came up that somebody else asked for, so what was decided
  // before may be out of date.
  void Reconsider();
  void OnLinkUp(const std::shared_ptr<Link>& link);
  void OnLinkDown(const std::shared_ptr<Link>& link, const Status& status);
  PeerStats Stats() const;

 private:
  enum class State { kIdle, kResolving, kLinked, kGrpc, kUnreachable };

  // Whether a decision against the fabric is taken anew after a while.
  enum class Again { kNever, kSoon, kLater };

  // A tensor that waits for the decision.
  struct Parked {
    Outgoing tensor;
    std::string key;
    std::vector<int64_t> dims;
    std::unique_ptr<FallbackSend> fallback;
  };

  // How something for this peer goes at this moment.
  struct Route {
    State state = State::kIdle;
    std::shared_ptr<Link> link;  // when linked
    Status why;
    bool resolve = false;  // the caller must call Resolve(), whatever the state
  };

  Route RouteLocked();
  Status SendOn(const std::shared_ptr<Link>& link, Outgoing* tensor, FallbackSend* fallback);
  Status SendElsewhere(const Outgoing& tensor, const std::string& reason, FallbackSend* fallback);
  Status HandToGrpc(int64_t step, std::string_view key, uint64_t bytes, const std::string& reason,
                    FallbackSend* fallback);
  void Park(Outgoing tensor, FallbackSend* fallback);
  Status UnreachableLocked() const;
  bool NeedsResolvingLocked() const;
  bool HasPlanLocked(const std::string& key) const;
  void Resolve(const BootstrapCall& call);
  void OnReply(const std::shared_ptr<Link>& link, AskingHandshake* handshake, const Status& status,
               const std::string& reply);
  void Decide(State state, const Status& status, Again again);
  void Flush(std::vector<Parked> parked);

  Endpoint* const endpoint_;
  const std::string task_;
  const std::string address_;
  Traffic* const traffic_;

  mutable std::mutex mu_;
  State state_ = State::kIdle;
  Status why_;           // of kGrpc and kUnreachable
  Nanos retry_at_ = 0;   // 0: never
  Nanos pause_ = 0;      // before the next attempt; doubles
  bool trying_ = false;  // an attempt is under way, in whatever state
  uint64_t links_ = 0;   // that came up
  double linked_at_ = 0;
  std::string last_error_;
  std::shared_ptr<Link> link_;
  std::vector<Parked> parked_;
  std::map<std::string, std::vector<PlannedEdge>> planned_;  // by owner
  PendingRecvList waiting_;                                  // for the decision
};

}  // namespace rdma_transport
