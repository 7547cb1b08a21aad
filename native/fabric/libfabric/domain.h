// An opened provider: its endpoint, through which all peers are reached, its completion queue, and
// memory registered with it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/host/fork_guard.h"
#include "fabric/host/region.h"
#include "fabric/libfabric/library.h"

namespace rdma_transport::fabric::libfabric {

class LibfabricChannel;

// Memory for one message. `data` has Domain::frame_bytes() bytes.
struct Frame {
  char* data = nullptr;
  void* descriptor = nullptr;  // of its registration, if the provider wants one
};

// What this fabric knows of an operation that it has handed to the library.
struct Operation {
  // kMark: a read of the peer's mark; of kLastMark, the end says that earlier operations have
  // ended.
  enum class Kind : uint8_t { kReceive, kMessage, kWrite, kRead, kMark, kLastMark };

  // Must be the first member: the library returns its address, and some providers use its bytes.
  fi_context2 context = {};
  Kind kind = Kind::kReceive;
  Frame frame;  // kReceive, kMessage; always the same
  // Null for kReceive, and for the domain's own. Keeps the channel until the operation has ended.
  std::shared_ptr<LibfabricChannel> channel;
  uint64_t cookie = 0;    // kWrite, kRead: of the user
  uint64_t sequence = 0;  // kWrite: its place among the writes of the channel
};

// How the provider differs from others, as far as this fabric must know.
struct Traits {
  uint32_t protocol = 0;  // peers must have the same protocol and version
  uint32_t protocol_version = 0;
  uint32_t address_format = 0;
  // A write can carry 32 bits that the target's completion queue reports when its bytes are there.
  bool remote_data = false;         // tried, whatever the provider says
  bool local_registration = false;  // local memory must be registered, too
  bool virtual_addresses = false;   // peers name memory by its address, otherwise by its offset
  bool chooses_keys = false;
  bool binds_to_endpoint = false;
  // Registration is a table entry, without pinned pages, so each peer can have its own.
  // Software then moves all bytes to a peer one after the other, as over TCP.
  bool cheap_registration = false;
  bool waits = false;  // has a descriptor to sleep on
  size_t key_bytes = 8;
  uint64_t largest_transfer = 0;
};

// Memory that peers can access by its key, until it is destroyed. In a forked child its end has no
// effect.
class Registration {
 public:
  Registration(Owned<fid_mr> region, char* address, bool by_address)
      : region_(std::move(region)),
        base_(by_address ? reinterpret_cast<uint64_t>(address) : 0),
        key_(fi_mr_key(region_.get())) {}
  ~Registration() {
    if (host::ForkGeneration() != generation_) (void)region_.release();
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  void* descriptor() const { return fi_mr_desc(region_.get()); }
  uint64_t key() const { return key_; }
  // What peers use as the address of the first byte.
  uint64_t base() const { return base_; }

 private:
  const int generation_ = host::ForkGeneration();
  Owned<fid_mr> region_;
  const uint64_t base_;
  const uint64_t key_;
};

// One entry of the completion queue.
struct Completion {
  Operation* operation = nullptr;  // null: a peer's write has arrived, with `data`
  uint32_t data = 0;
  size_t length = 0;  // of a received message, in bytes
  Status status;
};

// Thread-safe, except for Completions() and TryWait(), which one thread at a time calls. All
// operations end at the latest when it is destroyed, without a completion.
class Domain {
 public:
  // Opens the endpoint that `info` describes. Returns the library's error with the provider's name.
  static Status Open(std::shared_ptr<const Library> library, const fi_info* info,
                     std::unique_ptr<Domain>* domain);
  ~Domain();
  // Ends all operations, without completions. Nothing may be started afterwards.
  void Stop();
  bool Usable() const { return host::ForkGeneration() == generation_; }

  const Library& library() const { return *library_; }
  const Traits& traits() const { return traits_; }
  // The provider's name without its layers' options, such as "tcp" or "efa".
  const std::string& provider() const { return provider_; }
  // The endpoint's address as the provider writes it, for peers.
  const std::string& name() const { return name_; }
  // The same for users: "192.0.2.2:41234", or hexadecimal digits.
  std::string Text(const std::string& name) const;
  std::string HostOf(const std::string& name) const;  // "192.0.2.2"; empty if it is not one of IP
  // Whether this name() is an address of the loopback interface, which no other host reaches.
  bool IsLoopback(const std::string& name) const;
  static constexpr size_t frame_bytes() { return kFrameBytes; }

  // Finds the endpoint of that name(), which stays known until Leave().
  Status Reach(const std::string& name, fi_addr_t* peer);
  void Leave(const std::string& name);

  // Registers memory for peers, or with `access` 0 for local use alone.
  Status Register(char* address, size_t length, uint64_t access,
                  std::shared_ptr<Registration>* registration);

  // Makes a frame, which lives as long as the domain. Returns false if there is no memory. Not
  // thread-safe.
  bool NewFrame(Frame* frame);

  // Start an operation. Return 0, -FI_EAGAIN if it must be tried again later, or another negative
  // error. After 0, Completions() returns `operation` once.
  ssize_t Receive(Operation* operation);
  ssize_t Send(Operation* operation, size_t length, fi_addr_t peer);
  // With remote data, the peer learns of the write, and it may end before its bytes are there,
  // unless `delivered`. Without, it ends when they are.
  ssize_t Write(Operation* operation, const char* source, size_t length, void* descriptor,
                fi_addr_t peer, uint64_t address, uint64_t key, const uint32_t* data,
                bool delivered);
  ssize_t Read(Operation* operation, char* destination, size_t length, void* descriptor,
               fi_addr_t peer, uint64_t address, uint64_t key);

  // Makes progress and appends what has ended, some dozens at most. May do nothing while other
  // threads start operations. Returns false if the queue is broken, with the reason in `error`.
  bool Completions(std::vector<Completion>* ended, Status* error);
  // Returns whether the last call of Completions() did nothing.
  bool gave_way() const { return skipped_ > 0; }
  // Returns whether a thread may sleep on these descriptors. If not, call Completions() first.
  bool TryWait();
  // What becomes readable when there is something to do; none unless traits().waits. It may not
  // when another thread has caused a completion.
  std::vector<int> WaitDescriptors() const;
  // Over TCP, the kernel ends the connections to this peer's host when bytes that are under way now
  // are not acknowledged within `timeout`. Their operations then fail. Call it if the peer is
  // silent: by itself, the kernel tries for some 15 minutes.
  void LimitSilenceOf(const std::string& name, Nanos timeout) const;
  size_t most_receives() const { return most_receives_; }

 private:
  static constexpr size_t kFrameBytes = size_t{16} << 10;

  struct Peer {
    fi_addr_t address = FI_ADDR_UNSPEC;
    int users = 0;
  };

  explicit Domain(std::shared_ptr<const Library> library) : library_(std::move(library)) {}
  Status Init(const fi_info* info);
  Status OpenQueue(size_t size);
  bool AnnouncesWrites();
  bool TakeError(std::vector<Completion>* ended, Status* error);
  template <typename Start>
  ssize_t BesidePolling(Start start);

  const std::shared_ptr<const Library> library_;
  const int generation_ = host::ForkGeneration();
  std::string provider_;
  std::string name_;
  Traits traits_;
  size_t most_receives_ = 0;
  int wait_ = -1;

  // Providers serve all calls under one lock, which a spinning polling thread takes again and
  // again; a thread that has to sleep for it wakes up late. So the polling thread leaves it alone
  // while others need it, and these spin until it does.
  std::atomic<int> starting_{0};  // threads that start an operation
  std::atomic<bool> polling_{false};
  int skipped_ = 0;  // calls of Completions() in a row that gave way

  Operation probes_[2];  // of AnnouncesWrites(), until the endpoint closes

  std::mutex peers_mu_;
  std::map<std::string, Peer> known_;  // by name

  // Frames outlive the endpoint, which may still write into them.
  std::vector<std::unique_ptr<host::MemoryRegion>> slabs_;
  Frame next_frame_;
  size_t frames_left_ = 0;  // of the last slab

  // Closed in the reverse order.
  Owned<fid_fabric> fabric_;
  Owned<fid_domain> domain_;
  Owned<fid_av> peers_;
  Owned<fid_cq> queue_;
  Owned<fid_ep> endpoint_;
  std::vector<std::shared_ptr<Registration>> slab_registrations_;
};

}  // namespace rdma_transport::fabric::libfabric
