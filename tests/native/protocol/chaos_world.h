// Tasks of one process, edges between them and steps, over fabrics that fail at random; and what
// must hold all the same. See chaos_test.cc.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "faulty_fabric/faulty_task.h"

namespace rdma_transport::testing {

// What is drawn from a seed.
struct ChaosPlan {
  uint64_t seed = 0;
  bool card = false;
  bool refusals = false;  // calls are refused
  bool breaks = false;    // links break
  bool stops = false;     // tasks stop for longer than their peers and connections wait
};

// What complains: all of it becomes one failure of the test.
class Complaints {
 public:
  void Add(const std::string& what) {
    std::lock_guard<std::mutex> lock(mu_);
    if (all_.size() < 20) all_.push_back(what);
  }
  std::vector<std::string> Get() const {
    std::lock_guard<std::mutex> lock(mu_);
    return all_;
  }

 private:
  mutable std::mutex mu_;
  std::vector<std::string> all_;
};

struct ChaosEdge {
  size_t from = 0;
  size_t to = 0;
  std::string key;
  std::vector<size_t> sizes;  // a step's is one of them; one: the shape never changes
  bool in_arena = false;
  bool is_mutable = false;
  bool blocks_until_release = false;
  bool own_suffix = false;

  size_t SizeAt(int64_t step) const { return sizes[static_cast<size_t>(step) % sizes.size()]; }
};

class ChaosReceive;

// TensorFlow's own transport, as far as a step can see: what was handed to it can be fetched.
class ChaosGrpc {
 public:
  using Key = std::pair<int64_t, size_t>;  // step, edge
  // False: it was handed over before.
  bool Put(const Key& key);
  void Fetch(const Key& key, const std::shared_ptr<ChaosReceive>& receive);
  void EndStep(int64_t step);

 private:
  std::mutex mu_;
  std::set<Key> there_;
  std::map<Key, std::shared_ptr<ChaosReceive>> asked_;
};

class ChaosWorld {
 public:
  explicit ChaosWorld(const ChaosPlan& plan);
  ~ChaosWorld();

  // Some threads with steps of their own, then what is left over, then a step without faults, then
  // the end of all links.
  void Run();
  const Complaints& complaints() const { return complaints_; }
  std::string Summary();

 private:
  friend class ChaosByGrpc;
  friend class ChaosReceive;

  // One step, as its thread sees it.
  struct Step {
    int64_t number = 0;
    std::atomic<bool> failed{false};             // an error was told to a sender or to a receiver
    std::atomic<bool> fails{false};              // an operation of one task fails
    std::array<std::atomic<bool>, 4> aborted{};  // by task: it does nothing more for this step
    std::vector<std::shared_ptr<ChaosReceive>> receives;
  };

  // Whether a link ends while both of its tasks live.
  bool LinksEnd() const { return plan_.breaks || plan_.stops; }
  // Whether steps fail of which no operation does.
  bool Faulty() const { return plan_.refusals || LinksEnd(); }
  void MakeEdges(std::mt19937_64* random);
  void RunSteps(int thread);
  void RunStep(int64_t number, std::mt19937_64* random, bool must_succeed, bool* succeeded);
  void SendOne(Step* step, size_t edge);
  void ReceiveOne(Step* step, size_t edge);
  void Finish(Step* step, bool abort);
  void FailStep(int64_t step, const std::string& why);
  // As a task does whose operation fails, or to which a peer's abort is delivered.
  void AbortOn(size_t task, Step* step);
  void OnAborted(const ChaosReceive& receive, const Delivery& delivery);
  std::shared_ptr<Step> Find(int64_t step);
  uint64_t Breaks();
  void LetGoOfAll();
  void CheckQuiet();
  void CheckEverythingIsBack();

  const ChaosPlan plan_;
  Complaints complaints_;
  ChaosGrpc grpc_;
  std::vector<std::unique_ptr<FaultyTask>> tasks_;
  std::vector<ChaosEdge> edges_;
  std::atomic<int64_t> next_step_{1};
  std::atomic<uint64_t> arrived_{0};
  std::atomic<uint64_t> by_grpc_{0};
  std::atomic<uint64_t> failed_{0};

  std::mutex mu_;
  std::string last_failure_;
  std::map<int64_t, std::shared_ptr<Step>> steps_;
  std::deque<std::shared_ptr<ChaosReceive>> held_;
};

}  // namespace rdma_transport::testing
