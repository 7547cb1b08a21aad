#include "wire.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace fake_ibverbs {
namespace {

// While one exists, ThreadSanitizer does not look at what this thread reads and writes. When a peer
// in another process has this memory read or written, what orders that with the application's own
// accesses went through the other process, where the sanitizer does not see it.
struct Unobserved {
  Unobserved() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~Unobserved() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;
};

constexpr size_t kOutLimit = 1 << 20;
constexpr size_t kInBuffer = 2 * (sizeof(Frame) + kMaxPayload);
constexpr int kSocketBuffer = 1 << 20;

socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address->sun_path) - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

std::string NameOf(uint32_t tag) { return "fake_ibverbs.qp." + std::to_string(tag); }

bool SameUser(int fd) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

}  // namespace

int BindAbstract(int type, const std::string& name) {
  const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  close(fd);
  return -1;
}

bool Wire::Open() {
  std::random_device random;
  for (int i = 0; i < 10000 && listener_ < 0; ++i) {
    tag_ = 1 + random() % ((1U << (24 - kTagShift)) - 1);
    listener_ = BindAbstract(SOCK_STREAM, NameOf(tag_));
  }
  return listener_ >= 0 && listen(listener_, SOMAXCONN) == 0;
}

void Wire::CloseAll() {
  if (listener_ >= 0) close(listener_);
  for (const auto& [id, link] : links_) close(link->fd);
  listener_ = -1;
  links_.clear();
  by_tag_.clear();
}

uint64_t Wire::Add(int fd, uint32_t tag) {
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof(kSocketBuffer));
  auto link = std::make_unique<Link>();
  link->fd = fd;
  link->tag = tag;
  link->in.resize(kInBuffer);
  links_.emplace(next_id_, std::move(link));
  return next_id_++;
}

uint64_t Wire::LinkTo(uint32_t qp_num) {
  const uint32_t tag = qp_num >> kTagShift;
  if (tag == tag_) return kLocalLink;
  const auto it = by_tag_.find(tag);
  if (it != by_tag_.end()) return links_.at(it->second)->lost ? kNoLink : it->second;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return kNoLink;
  sockaddr_un address;
  const socklen_t length = AbstractAddress(NameOf(tag), &address);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || !SameUser(fd)) {
    close(fd);
    return kNoLink;
  }
  const uint64_t id = Add(fd, tag);
  by_tag_[tag] = id;
  return id;
}

bool Wire::HasRoom(uint64_t link) const {
  if (link == kLocalLink) return true;
  const auto it = links_.find(link);
  return it == links_.end() || it->second->out.size() - it->second->out_start < kOutLimit;
}

bool Wire::Send(uint64_t id, const Frame& frame, const char* payload) {
  if (id == kLocalLink) {
    handler_->OnFrame(kLocalLink, frame, payload);
    return true;
  }
  const auto it = links_.find(id);
  if (it == links_.end() || it->second->lost) return false;
  Link* link = it->second.get();
  link->out.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
  if (frame.payload != 0) {
    Unobserved unobserved;
    link->out.append(payload, frame.payload);
  }
  if (link->out.size() - link->out_start >= kMaxPayload) Write(link);
  return !link->lost;
}

bool Wire::Flush() {
  bool made_room = false;
  for (const auto& [id, link] : links_) {
    const bool full = !HasRoom(id);
    Write(link.get());
    made_room |= full && HasRoom(id);
  }
  return made_room;
}

void Wire::Write(Link* link) {
  while (!link->lost && link->out_start < link->out.size()) {
    const ssize_t sent = send(link->fd, link->out.data() + link->out_start,
                              link->out.size() - link->out_start, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      link->out_start += static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      link->lost = true;
    }
  }
  if (link->out_start == link->out.size()) {
    link->out.clear();
    link->out_start = 0;
  } else if (link->out_start >= kOutLimit) {
    link->out.erase(0, link->out_start);
    link->out_start = 0;
  }
}

void Wire::Accept() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (SameUser(fd)) {
      Add(fd, 0);
    } else {
      close(fd);
    }
  }
}

void Wire::Read(uint64_t id, Link* link) {
  if (link->in_start != 0) {
    std::memmove(link->in.data(), link->in.data() + link->in_start, link->in_end - link->in_start);
    link->in_end -= link->in_start;
    link->in_start = 0;
  }
  const ssize_t got =
      recv(link->fd, link->in.data() + link->in_end, link->in.size() - link->in_end, MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) link->lost = true;
  if (got <= 0) return;
  link->in_end += static_cast<size_t>(got);
  while (!link->lost && link->in_end - link->in_start >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, link->in.data() + link->in_start, sizeof(frame));
    if (frame.magic != kFrameMagic || frame.payload > kMaxPayload) {
      link->lost = true;
      return;
    }
    if (link->in_end - link->in_start < sizeof(Frame) + frame.payload) return;
    const char* payload = link->in.data() + link->in_start + sizeof(Frame);
    link->in_start += sizeof(Frame) + frame.payload;
    Unobserved unobserved;
    handler_->OnFrame(id, frame, payload);
  }
}

void Wire::AddPolls(std::vector<pollfd>* polls) const {
  polls->push_back({listener_, POLLIN, 0});
  for (const auto& [id, link] : links_) {
    const bool waiting = link->out_start < link->out.size();
    polls->push_back({link->fd, static_cast<short>(waiting ? POLLIN | POLLOUT : POLLIN), 0});
  }
}

void Wire::HandlePolls(const std::vector<pollfd>& polls) {
  std::map<int, short> ready;
  for (const pollfd& poll : polls) {
    if (poll.revents != 0) ready[poll.fd] = poll.revents;
  }
  if (ready.count(listener_) != 0) Accept();
  std::vector<uint64_t> ids;
  for (const auto& [id, link] : links_) ids.push_back(id);
  for (uint64_t id : ids) {
    Link* link = links_.at(id).get();
    const auto it = ready.find(link->fd);
    if (it == ready.end()) continue;
    if ((it->second & POLLOUT) != 0) Write(link);
    if ((it->second & ~POLLOUT) != 0) Read(id, link);
  }
  Sweep();
}

void Wire::Sweep() {
  std::vector<uint64_t> lost;
  for (auto it = links_.begin(); it != links_.end();) {
    if (!it->second->lost) {
      ++it;
      continue;
    }
    close(it->second->fd);
    const auto named = by_tag_.find(it->second->tag);
    if (named != by_tag_.end() && named->second == it->first) by_tag_.erase(named);
    lost.push_back(it->first);
    it = links_.erase(it);
  }
  for (uint64_t id : lost) handler_->OnLinkLost(id);
}

}  // namespace fake_ibverbs
