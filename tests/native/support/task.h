// Tasks for the tests: each with a runtime of its own, as if it were a process of its own, and a
// bootstrap that calls straight into the other task.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabrics.h"
#include "protocol/endpoint.h"
#include "protocol/runtime.h"

namespace rdma_transport::testing {

inline Settings TestSettings() {
  Settings settings = FabricSettings();
  settings.arena_size = uint64_t{256} << 20;
  settings.log_level = LogLevel::kError;
  settings.connect_timeout = 80 * kSecond;
  return settings;
}

class Task {
 public:
  // On `device`, or else on the one that the settings name.
  explicit Task(const std::string& name, const Settings& settings = TestSettings(),
                std::unique_ptr<fabric::Device> device = nullptr)
      : runtime_(std::make_unique<Runtime>(settings)) {
    SetLogLevel(LogLevel::kOff);
    if (device != nullptr) {
      runtime_->StartOn(std::move(device));
    } else {
      EXPECT_TRUE(runtime_->Start().ok());
    }
    endpoint_ = std::make_unique<Endpoint>(runtime_.get(), name);
  }
  ~Task() {
    runtime_->Stop();
    const std::unique_lock<std::shared_mutex> answered(answering_);
    endpoint_.reset();
  }

  Runtime& runtime() { return *runtime_; }
  Endpoint& endpoint() { return *endpoint_; }
  memory::Arena& arena() { return *runtime_->arena(); }
  // Whether it sends to a peer on a link. It does so for a moment after the link has left the
  // table.
  bool linked() const {
    const std::vector<PeerStats> peers = endpoint_->Stats();
    return std::any_of(peers.begin(), peers.end(), [](const auto& peer) { return peer.linked; });
  }
  // Stops the polling, as a process that is stopped would.
  void Stop() { runtime_->Stop(); }

  // Reaches `other` as a peer; `answer` may stand in for its reply.
  Peer* PeerTo(Task& other) {
    return endpoint_->GetPeer(other.endpoint().identity().task, "address");
  }
  static BootstrapCall CallTo(Task& other) {
    return [&other](const std::string& request, Nanos,
                    const std::function<void(Status, std::string)>& done) {
      std::shared_lock<std::shared_mutex> answering(other.answering_);
      const std::string reply = other.endpoint().HandleBootstrap(request);
      answering.unlock();
      done(OkStatus(), reply);
    };
  }
  static BootstrapCall CallThatFails(const Status& status) {
    return [status](const std::string&, Nanos, const auto& done) { done(status, ""); };
  }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Endpoint> endpoint_;
  // Held by other tasks' threads while they use this task, which ends after them.
  std::shared_mutex answering_;
};

// Catches a delivery, and counts how often it was called.
class Catcher final : public PendingRecv {
 public:
  void OnDelivery(Delivery delivery) override {
    if (deliveries_.fetch_add(1) == 0) promise_.set_value(std::move(delivery));
  }
  void OnUseGrpc(const std::string& reason) override {
    {
      std::lock_guard<std::mutex> lock(mu_);
      reason_ = reason;
    }
    grpc_asks_.fetch_add(1);
  }
  Delivery Get() {
    auto future = promise_.get_future();
    if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      Delivery late;
      late.status = Status(Code::kDeadlineExceeded, "nothing was delivered");
      return late;
    }
    return future.get();
  }
  int deliveries() const { return deliveries_.load(); }
  int grpc_asks() const { return grpc_asks_.load(); }
  std::string reason() const {
    std::lock_guard<std::mutex> lock(mu_);
    return reason_;
  }

 private:
  std::promise<Delivery> promise_;
  std::atomic<int> deliveries_{0};
  std::atomic<int> grpc_asks_{0};
  mutable std::mutex mu_;
  std::string reason_;
};

class CountingGrpc final : public FallbackSend {
 public:
  explicit CountingGrpc(std::atomic<int>* sends) : sends_(sends) {}
  Status Send() override {
    sends_->fetch_add(1);
    return OkStatus();
  }
  std::unique_ptr<FallbackSend> Keep(bool) override {
    return std::make_unique<CountingGrpc>(sends_);
  }
  void Fail(const Status&) override {}

 private:
  std::atomic<int>* const sends_;
};

// Bytes of a recognisable pattern, from the arena or from the heap.
class Payload {
 public:
  Payload(size_t length, int seed, memory::Arena* arena = nullptr)
      : arena_(arena), length_(length) {
    data_ = arena == nullptr ? new char[length] : arena->Allocate(length);
    for (size_t i = 0; i < length; ++i) data_[i] = At(i, seed);
  }
  ~Payload() {
    if (arena_ == nullptr) {
      delete[] data_;
    } else {
      arena_->Free(data_);
    }
  }
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

  static char At(size_t i, int seed) { return static_cast<char>(i * 31 + seed * 7 + i / 251); }
  static bool Matches(const char* data, size_t length, int seed) {
    for (size_t i = 0; i < length; ++i) {
      if (data[i] != At(i, seed)) return false;
    }
    return true;
  }
  char* data() { return data_; }
  size_t length() const { return length_; }

 private:
  memory::Arena* const arena_;
  const size_t length_;
  char* data_;
};

inline Outgoing Tensor(int64_t step, std::string_view key, const std::shared_ptr<Payload>& payload,
                       const std::vector<int64_t>& dims) {
  Outgoing tensor;
  tensor.step = step;
  tensor.key = key;
  tensor.dtype = 4;
  tensor.dims = dims.data();
  tensor.rank = static_cast<int>(dims.size());
  tensor.data = payload->data();
  tensor.bytes = payload->length();
  tensor.owner = OwnerRef::Holding(payload);
  return tensor;
}

// Waits for something that another thread brings about.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace rdma_transport::testing
