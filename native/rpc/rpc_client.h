// The client side of one channel.
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

// Thread-safe. Any number of calls may run at once.
class RpcClient final : public fabric::ChannelHandler,
                        public std::enable_shared_from_this<RpcClient> {
 public:
  explicit RpcClient(const Context& context) : context_(context) {}

  // Connects to the server whose listener is at `address`. Returns Unavailable if it does not
  // answer or no fabric reaches it, FailedPrecondition if it refuses, and Cancelled if `*cancelled`
  // becomes true.
  static Status Connect(const Context& context, const std::string& address, Nanos deadline,
                        const std::atomic<bool>* cancelled, std::shared_ptr<RpcClient>* client);

  // Waits for the reply. Fails with Unavailable if the server is lost or silent, and with Cancelled
  // after Cancel().
  Response Call(std::string_view request);
  // Cancels all current and future calls at once.
  void Cancel();
  // Closes the channel as soon as no payload can arrive. Must be the owner's last call.
  void Leave();
  // Returns true if the channel has ended, so that a new client is needed.
  bool lost() const;

  // ChannelHandler, on the polling thread:
  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnTransfer(uint64_t, const Status&) override {}
  void OnClosed(const Status& status) override;
  void OnReleased() override;

 private:
  // Memory that a payload may be written to.
  struct ReceiveBuffer {
    char* data = nullptr;
    OwnerRef owner;
    Place place = {};
  };
  // Guarded by mu_, except that the calling thread uses `receive_buffers` while it waits. They
  // belong to the peer until its reply has arrived or it has released the channel.
  struct Pending {
    std::vector<ReceiveBuffer> receive_buffers;
    std::vector<uint64_t> wanted;  // sizes for which `receive_buffers` are too small
    std::string text;
    bool done = false;
    Nanos done_at = 0;  // for timelines
  };

  Status Bootstrap(const std::string& address, Nanos deadline, const std::atomic<bool>* cancelled);
  Status AwaitConnected(Nanos deadline, const std::atomic<bool>* cancelled);
  std::vector<ReceiveBuffer> MakeReceiveBuffers(const std::vector<uint64_t>& sizes);
  Status Send(Type type, uint64_t number, const std::vector<ReceiveBuffer>& receive_buffers,
              std::string_view request);
  Status AwaitReply(uint64_t number, const std::shared_ptr<Pending>& call);
  Status Take(uint64_t number, const std::shared_ptr<Pending>& call, Response* response);
  void PredictSizes(const std::vector<Arrived>& payloads);
  Status Dispatch(const Message& message);
  Status EndedLocked() const;

  const Context context_;
  std::string server_name_;
  std::shared_ptr<fabric::Channel> channel_;

  mutable std::mutex mu_;  // not held while the channel is called
  std::condition_variable changed_;
  bool connected_ = false;
  bool cancelled_ = false;
  bool closed_ = false;
  Status reason_;                    // why it closed
  std::shared_ptr<RpcClient> self_;  // after Leave(), while a payload may still arrive
  std::map<uint64_t, std::shared_ptr<Pending>> calls_;
  std::map<uint64_t, std::shared_ptr<Pending>> ended_;  // calls whose payloads may still arrive
  std::vector<uint64_t> predicted_;                     // predicted payload sizes of the next reply
  Nanos heard_ = 0;
  bool silent_ = false;
};

}  // namespace rdma_transport::rpc
