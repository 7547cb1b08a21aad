#include "fabric/verbs/lane.h"

#include <utility>

namespace rdma_transport::fabric::verbs {

bool Lane::Holds(After after) const {
  if (items_.empty() || after.IsNothing()) return ordered_ > 0;
  if (ordered_ > 0 || after.IsEverything()) return true;
  return std::any_of(items_.begin(), items_.end(), [after](const auto& item) {
    const Transfer* transfer = std::get_if<Transfer>(&item);
    return transfer != nullptr && transfer->work.cookie == after.cookie();
  });
}

void Lane::CountTransfers(int more) {
  const bool before = transfers_ > 0;
  transfers_ += static_cast<size_t>(more);
  if (before != (transfers_ > 0)) waiting_->fetch_add(before ? -1 : 1);
}

void Lane::Add(const Transfer& transfer) {
  items_.emplace_back(transfer);
  CountTransfers(1);
}

void Lane::Add(Note note) {
  if (note.ordered) ++ordered_;
  note_bytes_ += note.bytes.size();
  items_.emplace_back(std::move(note));
}

void Lane::Pop() {
  if (const Note* first = note()) {
    if (first->ordered) --ordered_;
    note_bytes_ -= first->bytes.size();
  } else {
    CountTransfers(-1);
  }
  items_.pop_front();
}

uint64_t Lane::TakePiece(uint64_t piece) {
  const uint64_t length = std::min(transfer()->rest.length, piece);
  if (under_way_ > 0 && under_way_ + length > kPieces * piece) return 0;
  under_way_ += length;
  return length;
}

void Lane::Drop() {
  CountTransfers(-static_cast<int>(transfers_));
  items_.clear();
  ordered_ = 0;
  note_bytes_ = 0;
}

}  // namespace rdma_transport::fabric::verbs
