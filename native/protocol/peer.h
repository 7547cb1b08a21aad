// A remote task as one cluster names it. How tensors reach it is decided on first use:
//
//   idle -> resolving -> linked            the fabric carries tensors
//                     -> grpc (reason)     TensorFlow's transport carries them
//                     -> unreachable       sends and receives fail until a retry
//
// Each side decides for itself, and the decisions may differ for a while. This is safe: a receiver
// takes a tensor from the transport that delivers it first, and a sender that uses gRPC while a
// link to the receiver exists sends a pull notice on that link.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "protocol/bootstrap.h"
#include "protocol/fallback.h"
#include "protocol/links.h"
#include "protocol/pending_recv.h"
#include "protocol/runtime.h"
#include "protocol/task_report.h"
#include "protocol/tensor.h"

namespace rdma_transport {

class AskingHandshake;

// What the peers of a task use. Everything here must outlive them.
struct PeerContext {
  Runtime* runtime;
  const Identity* self;
  Links* links;
  Fallback* fallback;
};

// Thread-safe. Owned by its endpoint, which it must not outlive.
class Peer {
 public:
  Peer(const PeerContext& context, std::string task, std::string address, Traffic* traffic)
      : context_(context),
        task_(std::move(task)),
        address_(std::move(address)),
        traffic_(traffic) {}

  const std::string& task() const { return task_; }
  // Returns whether TensorFlow's transport now carries the tensors to this peer.
  bool by_grpc() const;
  // Returns what carries tensors to this peer now: the name of a fabric, or "grpc".
  std::string transport() const;
  PeerId id() const { return &traffic_->tasks; }
  const Traffic* traffic() const { return traffic_; }

  // Sends the tensor now, or keeps it until the transport is decided. `call` may be called later,
  // while the endpoint exists. Uses `fallback` for gRPC.
  // Returns an error if the step must fail. Sets `mode` to
  // how it was sent, unless that is null or the tensor is kept.
  Status Send(Outgoing tensor, const BootstrapCall& call, FallbackSend* fallback,
              std::optional<Mode>* mode = nullptr);
  // Returns whether the peer's card may be able to read memory of a device here.
  bool ReadsDevices() const;
  // Sends a tensor in memory of a device, which the peer reads from there. Sets `sent` to false if
  // the peer cannot: the tensor must then be sent otherwise. Errors are as above.
  Status SendFromDevice(Outgoing tensor, FallbackSend* fallback, bool* sent);
  // See Fallback::FailOne().
  void FailSend(int64_t step, std::string_view key, const Status& status, FallbackSend* fallback) {
    context_.fallback->FailOne(traffic_, step, key, status.message(), fallback);
  }
  // Fails `recv` with Unavailable when the peer is lost. If the peer is reached over gRPC, makes
  // `recv` fetch its tensor there. Connects to the peer if necessary.
  void Wait(const std::shared_ptr<PendingRecv>& recv, const BootstrapCall& call);
  // Fails `recv` when the peer is lost. Does nothing unless the peer is linked or being connected.
  void Watch(const std::shared_ptr<PendingRecv>& recv);

  // Calls the peer's worker service over the link. Returns what cancels the call, for use after it
  // was claimed; or null if nothing was sent, because the link does not carry the call now.
  std::function<void()> Call(CallMethod method, std::string_view request,
                             const std::shared_ptr<PendingCall>& call);

  // Records a tensor that `recv` has requested over gRPC at `begin`, and has got.
  void ReceivedByGrpc(const PendingRecv& recv, int64_t step, std::string_view key, uint64_t bytes,
                      Nanos begin);

  // Connects to the peer if necessary. `call` is as in Send().
  void Connect(const BootstrapCall& call);
  // Makes `edges` static on the link, and on each later one as it comes up. Edges without bytes are
  // skipped. Unplan() removes them, including edges promoted since.
  void Plan(const std::string& owner, std::vector<PlannedEdge> edges);
  void Unplan(const std::string& owner);

  // The functions below are for the endpoint.
  //
  // Retries to connect while tensors wait for it, and ends a wait for the remote task's link.
  // Returns true if it must be called again. Polling thread only.
  bool Tick();
  // A link to the remote task is up. If this peer opened it, or waits for it and it is `shared`,
  // sends on it from now on; otherwise, an earlier decision against the fabric is out of date.
  void OnLinkUp(const std::shared_ptr<Link>& link, bool shared);
  // Returns whether this peer used the link or waited for it.
  bool OnLinkDown(const std::shared_ptr<Link>& link, const Status& status);
  PeerStats Stats() const;

 private:
  enum class State { kIdle, kResolving, kLinked, kGrpc, kUnreachable };

  // When to retry after a decision against the fabric.
  enum class Again { kNever, kSoon, kLater };

  // An attempt to reach the peer, from RouteLocked() to Decide(). It waits for the reply to a
  // request, for the link that the reply admitted, for a link of the peer, or for OnLinkUp() to use
  // a link.
  struct Attempt {
    BootstrapCall call;  // how it reaches the peer
    Nanos until = 0;
    const Link* opened = nullptr;  // from its connection to its end; only compared
    std::string awaited;           // the peer's link that it waits for; empty if none
    Nanos await_until = 0;
  };

  // A tensor that waits until the transport is decided. Where gRPC must not be used, and the peer
  // cannot be reached, all wait until the first one's `until`, and the last one's `call` retries.
  struct Parked {
    Outgoing tensor;
    std::string key;
    std::vector<int64_t> dims;
    std::unique_ptr<FallbackSend> fallback;
    BootstrapCall call;
    Nanos until = 0;
  };

  // How to send to this peer at this moment.
  struct Route {
    State state = State::kIdle;
    std::shared_ptr<Link> link;  // null unless linked
    Status why;
    bool begun = false;  // an attempt: the caller must call Request(), in any state
  };

  // What a bootstrap request asked for: a channel to `link`, or a link of the peer.
  struct Asked {
    std::shared_ptr<Link> link;
    std::string offer;  // its ID
    bool insist = false;
  };

  Route RouteLocked(const BootstrapCall& call);
  Status SendOn(const std::shared_ptr<Link>& link, Outgoing* tensor, FallbackSend* fallback,
                std::optional<Mode>* mode);
  Status FinishSend(const std::shared_ptr<Link>& link, const SendOutcome& outcome,
                    UnackedTensor kept, bool changes, FallbackSend* fallback);
  Status SendElsewhere(const Outgoing& tensor, const std::string& reason, FallbackSend* fallback,
                       std::optional<Mode>* mode);
  void ParkLocked(Outgoing tensor, const BootstrapCall& call, FallbackSend* fallback);
  bool IsPatientLocked(Nanos now) const;
  std::shared_ptr<Link> LinkIfUp() const;
  static void Offer(const std::vector<PlannedEdge>& edges, Link* link);
  Status Unreachable(const Status& why) const;
  bool MustTryLocked() const;
  bool AwaitsLocked(const Link& link) const;
  bool HasPlanLocked(const std::string& key) const;
  void Request(bool insist);
  void OnReply(const Asked& asked, AskingHandshake* handshake, const Status& status,
               const std::string& bytes);
  void OnChannel(const std::shared_ptr<Link>& link, const BootstrapReply& reply,
                 const std::string& key);
  void Await(const std::string& id, bool up);
  void Decide(State state, const Status& status, Again again,
              const std::shared_ptr<Link>& link = nullptr);
  void Flush(std::vector<Parked> parked);

  const PeerContext context_;
  const std::string task_;
  const std::string address_;
  Traffic* const traffic_;

  mutable std::mutex mu_;
  State state_ = State::kIdle;
  Status why_;          // the reason for kGrpc and kUnreachable
  Nanos retry_at_ = 0;  // 0 if never
  Nanos pause_ = 0;     // delay before the next attempt; doubles
  uint64_t links_ = 0;  // number of links that came up
  double linked_at_ = 0;
  std::string last_error_;
  std::unique_ptr<Attempt> attempt_;  // null unless one is in progress; never while linked
  std::shared_ptr<Link> link_;        // null unless linked, or about to be: then attempt_ is set
  std::vector<Parked> parked_;
  std::map<std::string, std::vector<PlannedEdge>> planned_;  // by owner
  PendingRecvList waiting_;                                  // until the transport is decided
};

}  // namespace rdma_transport
