// Carries frames to the engines of this and of other processes, over abstract unix sockets.
//
// The upper half of a queue pair number names the process: it is unique on the host because the
// process listens on a socket named by it. Requests go out over a connection made by the requester,
// and are answered over the same one. Not thread-safe.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frame.h"

namespace fake_ibverbs {

constexpr int kTagShift = 12;
constexpr uint32_t kQpIndexMask = (1U << kTagShift) - 1;

class FrameHandler {
 public:
  virtual void OnFrame(uint64_t link, const Frame& frame, const char* payload) = 0;
  virtual void OnLinkLost(uint64_t link) = 0;

 protected:
  ~FrameHandler() = default;
};

class Wire {
 public:
  static constexpr uint64_t kNoLink = 0;
  // To this very process: frames are handled before Send() returns.
  static constexpr uint64_t kLocalLink = 1;

  explicit Wire(FrameHandler* handler) : handler_(handler) {}

  bool Open();
  // In a forked child: lets go of the parent's sockets.
  void CloseAll();
  uint32_t tag() const { return tag_; }

  uint64_t LinkTo(uint32_t qp_num);
  bool HasRoom(uint64_t link) const;
  // False if the link is gone. Short frames may wait for Flush().
  bool Send(uint64_t link, const Frame& frame, const char* payload);

  // Returns whether a link has room that had none.
  bool Flush();

  void AddPolls(std::vector<pollfd>* polls) const;
  void HandlePolls(const std::vector<pollfd>& polls);

 private:
  struct Link {
    int fd = -1;
    uint32_t tag = 0;
    bool lost = false;
    std::vector<char> in;
    size_t in_start = 0;
    size_t in_end = 0;
    std::string out;
    size_t out_start = 0;
  };

  uint64_t Add(int fd, uint32_t tag);
  void Accept();
  void Read(uint64_t id, Link* link);
  void Write(Link* link);
  void Sweep();

  FrameHandler* const handler_;
  int listener_ = -1;
  uint32_t tag_ = 0;
  uint64_t next_id_ = kLocalLink + 1;
  std::map<uint64_t, std::unique_ptr<Link>> links_;
  std::map<uint32_t, uint64_t> by_tag_;
};

// A CLOEXEC socket bound to an abstract name, or -1.
int BindAbstract(int type, const std::string& name);

}  // namespace fake_ibverbs
