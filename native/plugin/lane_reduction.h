// One member's part in one lane of a reduction (collectives/lanes.h).
//
//   all                 post their contribution to the lane's owner on their host
//   owners              combine the contributions of their host, and post a piece of the result to
//                       each other owner
//                       combine their own piece, post that to the other owners, and, with the
//                       pieces of these, the whole range to the members of their host
//
// An all-reduce needs all of that. A reduce-scatter ends with the pieces. What a member receives
// last it fetches from the beginning, so each step begins when the one before has ended elsewhere.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/lanes.h"
#include "plugin/collective_transfer.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// The reduction that lanes belong to. It lives until all transfers have ended.
class LaneOwner {
 public:
  using Arrived = std::function<void()>;

  // This member's contribution to a range.
  virtual tensorflow::Tensor Contribution(const collectives::Round& range) const = 0;
  // Where the result of a range belongs, or a tensor without elements if it is not for this member.
  virtual tensorflow::Tensor Result(const collectives::Round& range) const = 0;
  // Memory for `range` that no other lane uses; without any after an error.
  virtual tensorflow::Tensor Scratch(const collectives::Round& range) = 0;

  // Offers `tensor` to a member under a name that is unique to the two and the reduction.
  virtual void Post(const std::string& name, int to, const tensorflow::Tensor& tensor) = 0;
  // Fetch what a member posts under a name. `arrived` is called on any thread, unless the reduction
  // fails. `tensor` must live as long as this.
  virtual void Fetch(const std::string& name, int from, tensorflow::Tensor* tensor,
                     Arrived arrived) = 0;
  // Returns null after an error.
  virtual std::shared_ptr<CollectiveFetch> FetchInPlace(const std::string& name, int from,
                                                        uint64_t bytes, Arrived arrived) = 0;

  // Combines the sources, each as large as `result`, in their order. `last`: also applies what
  // follows the last combination. Returns false after an error.
  virtual bool Combine(const std::vector<const char*>& sources, bool last,
                       tensorflow::Tensor* result) = 0;

 protected:
  ~LaneOwner() = default;
};

class LaneReduction {
 public:
  // `division` and `owner` must outlive it. `gathers`: all members get the result of the lane.
  LaneReduction(LaneOwner* owner, const collectives::Division& division, size_t number, int rank,
                bool gathers);

  // Starts all that does not depend on another member.
  void Start();

 private:
  using Fetches = std::vector<std::shared_ptr<CollectiveFetch>>;

  const std::vector<int>& host() const { return division_.hosts[host_]; }
  const collectives::Round& piece() const { return lane_.pieces[host_]; }
  std::string Name(const char* step) const { return std::to_string(number_) + step; }
  void StartMember();
  void StartOwner();
  void OnHostContribution();
  void OnPieceContribution();
  void OnPiece();

  LaneOwner* const owner_;
  const collectives::Division& division_;
  const size_t number_;
  const collectives::Lane& lane_;
  const int rank_;
  const bool gathers_;
  size_t host_ = 0;  // of this member

  tensorflow::Tensor combined_;  // the contribution of this host; or of a member that owns nothing
  tensorflow::Tensor result_;    // of this member's piece
  std::vector<tensorflow::Tensor> fetched_;  // by host, or one for a member that owns nothing
  Fetches on_host_;                          // by place; null: this member's
  Fetches across_;                           // by host; null: this member's
  // What is missing for the steps of an owner; each counts the step before it, too.
  std::atomic<int> host_contributions_{1};
  std::atomic<int> piece_contributions_{1};
  std::atomic<int> pieces_{1};
};

}  // namespace rdma_transport
