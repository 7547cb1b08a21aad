#include "fabric/verbs/windows.h"

#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {
namespace {

// The card chooses the upper 24 bits. The lower 8 bits must differ from the previous key.
uint32_t NewKey(uint32_t key) {
  const uint32_t step = 1 + static_cast<uint32_t>(Random64() % 255);
  return (key & ~0xffu) | ((key + step) & 0xff);
}

}  // namespace

Status Window::Create(std::shared_ptr<Registration> memory, std::unique_ptr<Window>* window) {
  ibv_mw* made = ibv_alloc_mw(memory->adapter()->domain(), IBV_MW_TYPE_2);
  if (made == nullptr) return VerbError(errno, "ibv_alloc_mw", memory->adapter()->Name());
  window->reset(new Window(std::move(memory), made));
  return OkStatus();
}

Window::Window(std::shared_ptr<Registration> memory, ibv_mw* window)
    : memory_(std::move(memory)), window_(window), rkey_(NewKey(window->rkey)) {}

Window::~Window() {
  if (!memory_->adapter()->Usable()) return;
  const int error = ibv_dealloc_mw(window_);
  if (error != 0) {
    Log(LogLevel::kWarning,
        VerbError(error, "ibv_dealloc_mw", memory_->adapter()->Name()).message());
  }
}

void Window::FillBind(ibv_send_wr* request) const {
  request->opcode = IBV_WR_BIND_MW;
  request->bind_mw.mw = window_;
  request->bind_mw.rkey = rkey_;
  request->bind_mw.bind_info = {memory_->region(), memory_->iova(), memory_->length(),
                                static_cast<unsigned>(memory_->window_access())};
}

Status Windows::Make(uint64_t key, const std::shared_ptr<Registration>& memory) {
  if (memory->window_access() == 0) return OkStatus();
  return Window::Create(memory, &windows_[key]);
}

Window* Windows::Of(uint64_t key) const {
  const auto found = windows_.find(key);
  return found == windows_.end() ? nullptr : found->second.get();
}

void Windows::Revoke(uint64_t key) {
  const auto found = windows_.find(key);
  if (found == windows_.end()) return;
  const auto binding = binding_.find(found->second.get());
  if (binding != binding_.end()) binding->second = std::move(found->second);
  windows_.erase(found);
}

void Windows::Clear() {
  windows_.clear();
  binding_.clear();
}

}  // namespace rdma_transport::fabric::verbs
