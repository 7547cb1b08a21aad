#include "fabric/striped/lane.h"

namespace rdma_transport::fabric::striped {

bool Lane::Holds(After after) const {
  if (items_.empty() || after.IsNothing()) return ordered_ > 0;
  if (ordered_ > 0 || after.IsEverything()) return true;
  return std::any_of(items_.begin(), items_.end(), [after](const auto& item) {
    const Transfer* transfer = std::get_if<Transfer>(&item);
    return transfer != nullptr && transfer->cookie == after.cookie();
  });
}

void Lane::CountTransfers(int more) {
  const bool before = transfers_ > 0;
  transfers_ += static_cast<size_t>(more);
  if (before != (transfers_ > 0)) waiting_->fetch_add(before ? -1 : 1);
}

void Lane::Insert(Items::iterator place, const Transfer& transfer) {
  items_.insert(place, transfer);
  CountTransfers(1);
}

void Lane::Insert(Items::iterator place, Note note) {
  if (note.kind == RecordKind::kNotification && note.after.IsEverything()) ++ordered_;
  note_bytes_ += note.bytes.size();
  items_.insert(place, std::move(note));
}

void Lane::Pop() {
  if (const Note* first = note()) {
    if (first->kind == RecordKind::kNotification && first->after.IsEverything()) --ordered_;
    note_bytes_ -= first->bytes.size();
  } else {
    CountTransfers(-1);
  }
  urgent_ -= urgent_ > 0 ? 1 : 0;
  items_.pop_front();
}

void Lane::ResetRails() {
  for (auto& item : items_) {
    if (Transfer* transfer = std::get_if<Transfer>(&item)) transfer->rails = 0;
  }
}

void Lane::Drop() {
  CountTransfers(-static_cast<int>(transfers_));
  items_.clear();
  urgent_ = ordered_ = 0;
  note_bytes_ = 0;
}

}  // namespace rdma_transport::fabric::striped
