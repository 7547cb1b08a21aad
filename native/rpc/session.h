// The server side of one channel: passes calls to the handler, writes payloads into the client's
// memory, and then notifies the client.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "rpc/context.h"
#include "rpc/message.h"
#include "rpc/wire.h"

namespace rdma_transport::rpc {

// Thread-safe.
class Session final : public fabric::ChannelHandler, public std::enable_shared_from_this<Session> {
 public:
  // Runs work that may block, on another thread.
  using Run = std::function<void(std::function<void()>)>;

  Session(const Context& context, std::string client_name, Handler handler, Run run)
      : context_(context),
        client_name_(std::move(client_name)),
        handler_(std::move(handler)),
        run_(std::move(run)),
        created_(Now()) {}

  // Waits for the channel at `address` to connect. Sets `own` to this side's address.
  Status Open(std::string_view address, const std::string& channel_key, std::string* own);
  // Ends calls in progress without a reply, as soon as their handlers return.
  void Quit();
  // Quits if connected and idle. Returns whether it quits.
  bool QuitIfIdle();
  // Closes the channel. Must be called only when no call is in progress.
  void Close(const std::string& reason);
  bool closed() const;
  // Returns true if no client connected in time.
  bool Overdue(Nanos now) const;
  // Returns since when the client has been idle, or 0 if it is not connected or a call is in
  // progress.
  Nanos IdleSince() const;

  // ChannelHandler, on the polling thread:
  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;

 private:
  // Guarded by mu_.
  struct Call {
    bool writing = false;  // the reply is being written; `places` are fixed
    bool cancelled = false;
    bool buffers_came = false;
    std::string request;
    std::vector<Place> places;
  };

  Status Dispatch(const Message& message);
  Status Begin(const Message& message);
  void Cancel(uint64_t number);
  bool EndsLocked() const;
  void Respond(uint64_t number, const std::shared_ptr<Call>& call);
  bool RequestPlaces(uint64_t number, const std::shared_ptr<Call>& call,
                     const std::vector<uint64_t>& sizes);
  bool WritePayload(const Payload& payload, const Place& place,
                    const std::shared_ptr<Reply>& reply);
  void SendText(uint64_t number, const std::string& text);
  Status Notify(const Header& header, const void* table, size_t table_bytes,
                std::string_view bytes);
  Status NotifyWhenThereIsRoom(const Header& header, std::string_view bytes);
  void MapPlaces(const std::vector<Place>& places);

  const Context context_;
  const std::string client_name_;
  const Handler handler_;
  const Run run_;
  const Nanos created_;
  std::shared_ptr<fabric::Channel> channel_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool connected_ = false;
  Nanos used_at_ = 0;  // when the last call began or ended
  bool quitting_ = false;
  bool closed_ = false;
  std::map<uint64_t, std::shared_ptr<Call>> calls_;
  uint64_t last_cookie_ = 0;
  std::map<uint64_t, OwnerRef> writing_;  // memory that a card still reads, by cookie
};

}  // namespace rdma_transport::rpc
