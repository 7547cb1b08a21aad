// The responding end of one channel: hands calls to the handler, writes what they bring into the
// caller's memory, then tells it.
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

class Session final : public fabric::ChannelHandler, public std::enable_shared_from_this<Session> {
 public:
  // Runs work that may block.
  using Run = std::function<void(std::function<void()>)>;

  // `caller` is what the other end is called.
  Session(const Context& context, std::string caller, Handler handler, Run run)
      : context_(context),
        caller_(std::move(caller)),
        handler_(std::move(handler)),
        run_(std::move(run)),
        born_(Now()) {}

  // Prepares to be connected by the channel of that address; `own` gets this side's.
  Status Open(std::string_view address, const std::string& channel_key, std::string* own);
  // Calls under way end without a reply as soon as their handlers return.
  void Quit();
  // The same, unless a call is under way. Whether it quits.
  bool QuitIfIdle();
  // When no call is under way: nothing is written any more.
  void Close(const std::string& reason);
  bool closed() const;
  // Nobody came within the time for it.
  bool Overdue(Nanos now) const;
  // Since when the caller has asked for nothing; 0: a call is under way, or it has yet to connect.
  Nanos IdleSince() const;

  // ChannelHandler, on the polling thread.
  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;

 private:
  // Guarded by mu_.
  struct Call {
    bool writing = false;  // its places are in use; what comes afterwards is the reply
    bool cancelled = false;
    bool landing_came = false;
    std::string request;
    std::vector<Place> places;
  };

  Status Dispatch(const Message& message);
  Status Begin(const Message& message);
  void Cancel(uint64_t number);
  bool EndsLocked() const;
  void Respond(uint64_t number, const std::shared_ptr<Call>& call);
  bool AskForPlaces(uint64_t number, const std::shared_ptr<Call>& call,
                    const std::vector<uint64_t>& sizes);
  bool Land(const Payload& payload, const Place& place, const std::shared_ptr<Reply>& reply);
  void SendText(uint64_t number, const std::string& text);
  Status Notify(const Header& header, const void* table, size_t table_bytes,
                std::string_view bytes);
  Status NotifyWhenThereIsRoom(const Header& header, std::string_view bytes);
  void MapPlaces(const std::vector<Place>& places);

  const Context context_;
  const std::string caller_;
  const Handler handler_;
  const Run run_;
  const Nanos born_;
  std::shared_ptr<fabric::Channel> channel_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool connected_ = false;
  Nanos used_at_ = 0;  // when the last call began or ended
  bool quitting_ = false;
  bool closed_ = false;
  std::map<uint64_t, std::shared_ptr<Call>> calls_;
  uint64_t last_cookie_ = 0;
  std::map<uint64_t, OwnerRef> writing_;  // what a card still reads, by cookie
};

}  // namespace rdma_transport::rpc
