#include "plugin/lane_reduction.h"

#include "plugin/reduction_types.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

constexpr char kToOwner[] = ":in";
constexpr char kAcross[] = ":across";
constexpr char kPiece[] = ":piece";
constexpr char kToMembers[] = ":out";

const char* BytesOf(const tf::Tensor& tensor) { return tensor.tensor_data().data(); }

}  // namespace

LaneReduction::LaneReduction(LaneOwner* owner, const collectives::Division& division, size_t number,
                             int rank, bool gathers)
    : owner_(owner),
      division_(division),
      number_(number),
      lane_(division.lanes[number]),
      rank_(rank),
      gathers_(gathers),
      host_(collectives::HostOf(division.hosts, rank)) {}

void LaneReduction::Start() {
  if (lane_.owners[host_] == rank_) {
    StartOwner();
  } else {
    StartMember();
  }
}

void LaneReduction::StartMember() {
  const int to = lane_.owners[host_];
  owner_->Post(Name(kToOwner), to, owner_->Contribution(lane_.range));
  if (!gathers_) return;
  fetched_.push_back(owner_->Result(lane_.range));
  owner_->Fetch(Name(kToMembers), to, &fetched_.front(), [] {});
}

// Members start with those after them, so that they do not all begin with the same one.
void LaneReduction::StartOwner() {
  const size_t hosts = lane_.owners.size();
  fetched_.resize(hosts);
  across_.resize(hosts);
  on_host_.resize(host().size());
  if (piece().length > 0) piece_contributions_ += static_cast<int>(hosts) - 1;
  if (gathers_) {
    for (size_t i = 1; i < hosts; ++i) pieces_ += lane_.pieces[(host_ + i) % hosts].length > 0;
  }
  host_contributions_ += static_cast<int>(host().size()) - 1;
  for (size_t i = 1; i < hosts; ++i) {
    const size_t from = (host_ + i) % hosts;
    const int rank = lane_.owners[from];
    if (gathers_ && lane_.pieces[from].length > 0) {
      fetched_[from] = owner_->Result(lane_.pieces[from]);
      owner_->Fetch(Name(kPiece), rank, &fetched_[from], [this] { OnPiece(); });
    }
    if (piece().length > 0) {
      across_[from] = owner_->FetchInPlace(Name(kAcross), rank, piece().length,
                                           [this] { OnPieceContribution(); });
    }
  }
  for (size_t place = 0; place < host().size(); ++place) {
    if (host()[place] == rank_) continue;
    on_host_[place] = owner_->FetchInPlace(Name(kToOwner), host()[place], lane_.range.length,
                                           [this] { OnHostContribution(); });
  }
  OnHostContribution();
}

void LaneReduction::OnHostContribution() {
  if (--host_contributions_ > 0) return;
  const tf::Tensor own = owner_->Contribution(lane_.range);
  combined_ = own;
  if (host().size() > 1) {
    combined_ = owner_->Result(lane_.range);
    if (combined_.NumElements() == 0) combined_ = owner_->Scratch(lane_.range);
    if (!combined_.IsInitialized()) return;
    std::vector<const char*> sources;
    for (const auto& fetch : on_host_) {
      sources.push_back(fetch == nullptr ? BytesOf(own) : fetch->data());
    }
    if (!owner_->Combine(sources, /*last=*/false, &combined_)) return;
    for (const auto& fetch : on_host_) {
      if (fetch != nullptr) fetch->Release();
    }
  }
  const size_t hosts = lane_.owners.size();
  for (size_t i = 1; i < hosts; ++i) {
    const size_t to = (host_ + i) % hosts;
    const collectives::Round& piece = lane_.pieces[to];
    if (piece.length == 0) continue;
    owner_->Post(Name(kAcross), lane_.owners[to],
                 SliceOf(combined_, {piece.number, piece.begin - lane_.range.begin, piece.length}));
  }
  OnPieceContribution();
}

void LaneReduction::OnPieceContribution() {
  if (--piece_contributions_ > 0) return;
  const size_t hosts = lane_.owners.size();
  if (piece().length > 0) {
    result_ = owner_->Result(piece());
    const char* const own = BytesOf(combined_) + (piece().begin - lane_.range.begin);
    std::vector<const char*> sources;
    for (const auto& fetch : across_) sources.push_back(fetch == nullptr ? own : fetch->data());
    if (!owner_->Combine(sources, /*last=*/true, &result_)) return;
    for (size_t i = 1; i < hosts && gathers_; ++i) {
      owner_->Post(Name(kPiece), lane_.owners[(host_ + i) % hosts], result_);
    }
    for (const auto& fetch : across_) {
      if (fetch != nullptr) fetch->Release();
    }
  }
  OnPiece();
}

void LaneReduction::OnPiece() {
  if (--pieces_ > 0 || !gathers_) return;
  for (const int member : host()) {
    if (member != rank_) owner_->Post(Name(kToMembers), member, owner_->Result(lane_.range));
  }
}

}  // namespace rdma_transport
