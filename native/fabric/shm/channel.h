#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/shm/doorbell.h"
#include "fabric/shm/messages.h"
#include "fabric/shm/ring.h"
#include "fabric/shm/socket.h"
#include "fabric/shm/window.h"

namespace rdma_transport::fabric::shm {

class ShmDevice;

// Lock order: send_mu_ before socket_mu_. No lock is held while the handler runs.
class ShmChannel final : public Channel {
 public:
  ShmChannel(ShmDevice* device, std::weak_ptr<ChannelHandler> handler, std::string token);
  ~ShmChannel() override;

  std::string Address() const override;
  Status Connect(std::string_view peer_address, Role role) override;
  const char* fabric() const override { return "shm"; }
  std::string Route() const override { return "same host"; }
  bool MapsPeer() const override { return true; }
  bool Copies() const override { return true; }
  // What lies in the ring is read even if the peer dies; a ring that breaks ends a peer's life.
  bool MayLose() const override { return false; }
  Status Share(uint64_t key) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number) override;
  Backlog backlog() const override;
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override;
  MappedSpan Map(const RemoteSpan& span) override;
  bool Owns(const void* data, RemoteSpan* span) const override;
  void Close(const Status& reason) override;

  const std::string& token() const { return token_; }
  int socket_fd() const { return socket_.get(); }

  // The rest is for the device, on the polling thread.
  Status Attach(host::FileDescriptor socket, Message* hello);  // passive side: the peer has come
  int Poll();
  bool HasWork() const;
  void HandleSocket();
  void RingIfLazy();
  void ForgetRegion(uint64_t key);
  bool closed() const { return state_.load() == State::kClosed; }
  // Closed, and everybody has been told: nothing is left to do for it.
  bool finished() const { return finished_.load(); }
  // After Close(): tells the handler, once, and lets go of the socket.
  void FinishClose();

 private:
  enum class State { kNew, kConnecting, kConnected, kClosed };

  // Not OK: the channel was closed meanwhile.
  Status Advance(State from, State to);
  Status CloseReason() const;
  Status SendEnds(MessageType type);
  Status TakePeerEnds(Message* message);
  Status BecomeConnected();
  Status HandleMessage(Message* message);
  Status AddMapping(Message* message);
  std::shared_ptr<Mapping> FindMapping(uint64_t key);
  Status DrainSocket();
  void FlushPending();
  void Enqueue(const iovec* parts, int count, size_t length);
  Status Transfer(const RemoteSpan& span, bool write, char* local, uint64_t cookie);

  ShmDevice* const device_;
  const std::weak_ptr<ChannelHandler> handler_;
  const std::string token_;
  std::string peer_token_;
  std::atomic<uint64_t> peer_device_id_{0};
  std::atomic<State> state_{State::kNew};
  bool passive_ = false;

  RingConsumer incoming_;
  Doorbell peer_doorbell_;
  std::atomic<bool> unrung_{false};

  mutable std::mutex send_mu_;
  RingProducer outgoing_;
  std::deque<std::string> pending_;
  size_t pending_bytes_ = 0;
  uint64_t notified_ = 0;
  std::atomic<bool> has_pending_{false};

  std::mutex socket_mu_;
  host::FileDescriptor socket_;
  std::set<uint64_t> shared_;

  mutable std::mutex state_mu_;
  std::map<uint64_t, std::shared_ptr<Mapping>> mappings_;
  struct Completion {
    uint64_t cookie;
    Status status;
  };
  std::deque<Completion> completions_;
  std::atomic<bool> has_completions_{false};
  Status close_reason_;
  std::atomic<bool> finished_{false};
};

}  // namespace rdma_transport::fabric::shm
