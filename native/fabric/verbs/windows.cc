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

Status Window::Create(Adapter* adapter, std::shared_ptr<Registration> memory,
                      std::unique_ptr<Window>* window) {
  ibv_mw* made = ibv_alloc_mw(adapter->domain(), IBV_MW_TYPE_2);
  if (made == nullptr) return VerbError(errno, "ibv_alloc_mw", adapter->Name());
  window->reset(new Window(adapter, std::move(memory), made));
  return OkStatus();
}

Window::Window(Adapter* adapter, std::shared_ptr<Registration> memory, ibv_mw* window)
    : adapter_(adapter), memory_(std::move(memory)), window_(window), rkey_(NewKey(window->rkey)) {}

Window::~Window() {
  if (!adapter_->Usable()) return;
  const int error = ibv_dealloc_mw(window_);
  if (error != 0) {
    Log(LogLevel::kWarning, VerbError(error, "ibv_dealloc_mw", adapter_->Name()).message());
  }
}

void Window::FillBind(ibv_send_wr* request) const {
  request->opcode = IBV_WR_BIND_MW;
  request->bind_mw.mw = window_;
  request->bind_mw.rkey = rkey_;
  request->bind_mw.bind_info = {memory_->region(), memory_->iova(), memory_->length(),
                                static_cast<unsigned>(memory_->window_access())};
}

Status Windows::Make(uint64_t key, const std::shared_ptr<Registration>& memory, size_t count) {
  std::vector<std::unique_ptr<Window>> made(count);
  for (auto& window : made) RDMA_RETURN_IF_ERROR(Window::Create(adapter_, memory, &window));
  windows_[key] = std::move(made);
  return OkStatus();
}

std::vector<Window*> Windows::Of(uint64_t key) const {
  std::vector<Window*> found;
  const auto windows = windows_.find(key);
  if (windows == windows_.end()) return found;
  for (const auto& window : windows->second) found.push_back(window.get());
  return found;
}

void Windows::Revoke(uint64_t key) {
  const auto found = windows_.find(key);
  if (found == windows_.end()) return;
  for (auto& window : found->second) {
    const auto binding = binding_.find(window.get());
    if (binding != binding_.end()) binding->second = std::move(window);
  }
  windows_.erase(found);
}

void Windows::Clear() {
  windows_.clear();
  binding_.clear();
}

}  // namespace rdma_transport::fabric::verbs
