// The calling end of one channel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "rpc/context.h"
#include "rpc/message.h"
#include "rpc/wire.h"

namespace rdma_transport::rpc {

// Thread-safe; any number of calls at once.
class RpcClient final : public fabric::ChannelHandler,
                        public std::enable_shared_from_this<RpcClient> {
 public:
  explicit RpcClient(const Context& context) : context_(context) {}

  // Connects to the responder whose door is at `address`. Unavailable: nobody is there, or no
  // fabric reaches it; FailedPrecondition: it refuses; Cancelled: `*cancelled` became true.
  static Status Connect(const Context& context, const std::string& address, Nanos deadline,
                        const std::atomic<bool>* cancelled, std::shared_ptr<RpcClient>* caller);

  // Waits for the reply. Unavailable: the responder is gone, or is silent; Cancelled: after
  // Cancel().
  Response Call(std::string_view request);
  // Ends all calls, also later ones, at once.
  void Cancel();
  // Must be the last call of the owner: closes the channel, as soon as nothing lands any more.
  void Leave();
  // The channel has ended: another one is needed.
  bool lost() const;
  // "shm", "verbs".
  const char* fabric() const { return channel_->fabric(); }

  // ChannelHandler, on the polling thread.
  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnTransfer(uint64_t, const Status&) override {}
  void OnClosed(const Status& status) override;
  void OnReleased() override;

 private:
  // Memory in which a payload may land.
  struct ReceiveBuffer {
    char* data = nullptr;
    OwnerRef owner;
    Place place = {};
  };
  // Guarded by mu_, except that the landings are the calling thread's while it waits. They belong
  // to the peer until its reply has come, or it has let go of the channel.
  struct Pending {
    std::vector<ReceiveBuffer> landings;
    std::vector<uint64_t> wanted;  // sizes that the landings do not fit
    std::string text;
    bool done = false;
    Nanos came = 0;  // when it was done, for a timeline
  };

  Status Bootstrap(const std::string& address, Nanos deadline, const std::atomic<bool>* cancelled);
  Status AwaitConnected(Nanos deadline, const std::atomic<bool>* cancelled);
  std::vector<ReceiveBuffer> MakeLandings(const std::vector<uint64_t>& sizes);
  Status Send(Type type, uint64_t number, const std::vector<ReceiveBuffer>& landings,
              std::string_view request);
  Status AwaitReply(uint64_t number, const std::shared_ptr<Pending>& call);
  Status Take(uint64_t number, const std::shared_ptr<Pending>& call, Response* response);
  void PredictSizes(const std::vector<Arrived>& payloads);
  Status Dispatch(const Message& message);
  Status EndedLocked() const;

  const Context context_;
  std::string responder_;  // what the other end is called
  std::shared_ptr<fabric::Channel> channel_;

  mutable std::mutex mu_;  // never held while the channel is called
  std::condition_variable changed_;
  bool connected_ = false;
  bool cancelled_ = false;
  bool closed_ = false;
  Status reason_;                    // why it closed
  std::shared_ptr<RpcClient> self_;  // after Leave(), while something may still land
  std::map<uint64_t, std::shared_ptr<Pending>> calls_;
  std::map<uint64_t, std::shared_ptr<Pending>> ended_;  // that may still land
  std::vector<uint64_t> foreseen_;  // sizes for which the next reply will want places
  Nanos heard_ = 0;
  bool silent_ = false;
};

}  // namespace rdma_transport::rpc
