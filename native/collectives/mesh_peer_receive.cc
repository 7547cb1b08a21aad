// What a member receives from another one. Pieces are copied out of the sender's memory, or read
// into blocks of the pool and copied from there.

#include <cstring>
#include <utility>

#include "collectives/mesh_peer.h"

namespace rdma_transport::collectives {
namespace {

constexpr uint64_t kMaxMessage = uint64_t{1} << 40;
// Reads of one channel at a time.
constexpr size_t kMaxReads = 16;

}  // namespace

Status MeshPeer::HandleMessage(const Note& note, std::string_view bytes) {
  const Envelope envelope = {rank_, note.tag, note.length};
  if (note.tag < 0 || note.length > kMaxMessage) return Malformed();
  if (note.key == 0) {
    if (bytes.size() != note.length) return Malformed();
    bool received = false;
    RDMA_RETURN_IF_ERROR(state_->Deliver(envelope, bytes, &received));
    if (received) Consumed(note.length);
    return OkStatus();
  }
  const auto letter = std::make_shared<Letter>();
  letter->envelope = envelope;
  letter->id = note.key;
  letter->missing = note.length;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (note.length == 0 || !letters_.emplace(note.key, letter).second) return Malformed();
    const auto receive = state_->inbox.TakeReceive(envelope);
    if (receive != nullptr) {
      Match(letter.get(), receive);
    } else {
      state_->inbox.letters.push_back(letter);
      state_->changed.notify_all();
    }
  }
  if (!bytes.empty()) RDMA_RETURN_IF_ERROR(HandlePiece(bytes));
  Take(letter);
  return OkStatus();
}

Status MeshPeer::HandlePiece(std::string_view bytes) {
  LetterPart part;
  Piece& piece = part.piece;
  if (bytes.size() != sizeof(piece)) return Malformed();
  std::memcpy(&piece, bytes.data(), sizeof(piece));
  const bool in_place = piece.in_place();
  if (piece.length > (in_place ? kMaxInPlace : kBlockBytes)) return Malformed();
  if (in_place && !channel_->MapsPeer()) return Malformed();
  if (channel_->MapsPeer() && !in_place) {
    part.span = channel_->Map({piece.key, piece.offset, piece.length});
    if (part.span.data == nullptr) {
      return Status(Code::kResourceExhausted,
                    "cannot map a message of rank " + std::to_string(rank_));
    }
  }
  std::unique_lock<std::mutex> lock(state_->mu);
  const auto found = letters_.find(piece.message);
  if (found == letters_.end() || !ready()) return Malformed();
  const std::shared_ptr<Letter> letter = found->second;
  const uint64_t length = letter->envelope.length;
  if (piece.length == 0 || piece.length > length - letter->announced ||
      piece.at > length - piece.length) {
    return Malformed();
  }
  letter->announced += piece.length;
  letter->in_place |= in_place;
  letter->parts.push_back(std::move(part));
  Take(letter, std::move(lock));  // at once: the receive may end otherwise, and its memory go
  return OkStatus();
}

void MeshPeer::Take(const std::shared_ptr<Letter>& letter) {
  Take(letter, std::unique_lock<std::mutex>(state_->mu));
}

void MeshPeer::Take(const std::shared_ptr<Letter>& letter, std::unique_lock<std::mutex> lock) {
  if (!letter->accepted) return;
  std::vector<LetterPart> parts;
  Note note;
  note.kind = Note::kWanted;
  note.key = letter->id;
  parts.swap(letter->parts);
  const bool counted = channel_->MapsPeer();
  if (counted) letter->copying += static_cast<int>(parts.size());
  if (counted) state_->copying += static_cast<int>(parts.size());
  if (letter->asked || letter->announced == letter->envelope.length) note.key = 0;
  letter->asked = true;
  lock.unlock();
  if (note.key != 0) SendNote(note).IgnoreError();  // a lost member has ended the letter
  for (LetterPart& part : parts) {
    const Piece& piece = part.piece;
    if (letter->target == nullptr) {
      Copied(letter, piece, counted);
    } else if (piece.in_place()) {
      char* const to = letter->target + piece.at;
      Copied(letter, piece, counted, ReadSealed(its_seal_, piece.offset, to, piece.length));
    } else if (counted) {
      std::memcpy(letter->target + piece.at, part.span.data, piece.length);
      part.span = {};
      Copied(letter, piece, counted);
    } else {
      lock.lock();
      to_read_.push_back({letter, piece, {}});
      lock.unlock();
    }
  }
  StartReads();
}

// `read`: otherwise, a piece could not be read where it lies.
void MeshPeer::Copied(const std::shared_ptr<Letter>& letter, const Piece& piece, bool counted,
                      bool read) {
  bool complete = false;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (counted) --letter->copying;
    if (counted) --state_->copying;
    (read ? letter->missing : letter->announced) -= piece.length;
    complete = letter->missing == 0;
    if (complete) letters_.erase(letter->id);
    const bool over = complete || (letter->failed && letter->copying == 0);
    const auto& receive = letter->receive;
    if (over && receive != nullptr) {
      if (complete && letter->held != nullptr && receive->status.ok()) {
        std::memcpy(receive->buffer, letter->held.get(), letter->envelope.length);
      }
      state_->End(receive.get(), OkStatus());
    }
    if (over) state_->changed.notify_all();  // the end of the mesh waits for copies
  }
  Note note;
  note.kind = read ? Note::kTaken : Note::kUnread;
  note.key = letter->id;
  note.length = piece.at;
  note.tag = static_cast<int32_t>(piece.length);
  // The sender of a message of one block does not wait for this.
  const bool small = letter->envelope.length <= kBlockBytes && counted && !letter->in_place;
  if (small && !complete) return;
  if (small) note.length = 0;
  if (small) note.tag = static_cast<int32_t>(letter->envelope.length);
  const auto urgency = small ? fabric::Urgency::kLazy : fabric::Urgency::kWake;
  SendNote(note, {}, urgency).IgnoreError();  // a lost sender does not wait
}

void MeshPeer::StartReads() {
  while (true) {
    Reading reading;
    uint64_t cookie = 0;
    {
      std::lock_guard<std::mutex> lock(state_->mu);
      if (to_read_.empty() || reads_.size() >= kMaxReads || !lost().ok()) return;
      reading = std::move(to_read_.front());
      to_read_.pop_front();
      cookie = ++last_read_;
    }
    const Piece& piece = reading.piece;
    Status status = state_->pool->Take(&reading.block);
    if (status.ok()) {
      char* const landing = reading.block.data;
      {
        std::lock_guard<std::mutex> lock(state_->mu);
        if (!lost().ok()) return;
        reads_[cookie] = reading;
      }
      status = channel_->Read({piece.key, piece.offset, piece.length}, landing, cookie);
    }
    if (!status.ok()) return channel_->Close(status);
  }
}

void MeshPeer::EndRead(uint64_t cookie) {
  Reading reading;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    const auto found = reads_.find(cookie);
    if (found == reads_.end()) return;  // the call has ended
    reading = std::move(found->second);
    reads_.erase(found);
    ++reading.letter->copying;
    ++state_->copying;
  }
  std::memcpy(reading.letter->target + reading.piece.at, reading.block.data, reading.piece.length);
  state_->pool->Give(reading.block);
  Copied(reading.letter, reading.piece, /*counted=*/true);
  StartReads();
}

Status MeshPeer::Read(const fabric::RemoteSpan& source, char* destination,
                      const std::shared_ptr<RemoteReads>& reads) {
  uint64_t cookie = 0;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    if (!lost().ok()) return lost();
    cookie = ++last_read_;
    remote_reads_[cookie] = reads;
    ++reads->under_way;
  }
  const Status status = channel_->Read(source, destination, cookie);
  if (!status.ok()) EndRemoteRead(cookie, status);
  return OkStatus();
}

bool MeshPeer::EndRemoteRead(uint64_t cookie, const Status& status) {
  std::shared_ptr<RemoteReads> reads;  // its target may go, after the lock
  std::lock_guard<std::mutex> lock(state_->mu);
  const auto found = remote_reads_.find(cookie);
  if (found == remote_reads_.end()) return false;
  reads = std::move(found->second);
  remote_reads_.erase(found);
  if (reads->status.ok()) reads->status = status;
  if (--reads->under_way == 0) state_->changed.notify_all();
  return true;
}

// Requires the lock.
void MeshPeer::EndRemoteReads(const Status& status) {
  for (const auto& [cookie, reads] : remote_reads_) {
    if (reads->status.ok()) reads->status = status;
    --reads->under_way;
  }
  remote_reads_.clear();
  state_->changed.notify_all();
}

// A sender waits only if the receiver is far behind, so it need not know each message.
void MeshPeer::Consumed(uint64_t bytes) {
  Note note;
  note.kind = Note::kConsumed;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    consumed_ += CostOf(bytes);
    if (consumed_ < kMaxUnconsumed / 4) return;
    note.length = std::exchange(consumed_, 0);
  }
  SendNote(note).IgnoreError();  // a lost sender does not wait
}

// The messages that have not been received are copied, because the member's memory goes.
Status MeshPeer::HandleLeaving() {
  std::vector<std::shared_ptr<Letter>> letters;
  {
    std::lock_guard<std::mutex> lock(state_->mu);
    state_->absent[rank_].left = true;
    for (const auto& letter : state_->inbox.letters) {
      if (letter->envelope.source != rank_ || letter->accepted) continue;
      letter->held = AllocateBytes(letter->envelope.length);
      if (letter->held == nullptr) {
        return Status(Code::kResourceExhausted,
                      "there is no memory for the messages of rank " + std::to_string(rank_));
      }
      letter->target = letter->held.get();
      letter->accepted = true;
      letters.push_back(letter);
    }
    state_->EndReceives();
  }
  for (const auto& letter : letters) Take(letter);
  return OkStatus();
}

// Requires the lock. What has been announced in mapped memory can still be copied.
void MeshPeer::EndLetters(const Status& status) {
  to_read_.clear();
  reads_.clear();
  for (auto each = letters_.begin(); each != letters_.end();) {
    const std::shared_ptr<Letter> letter = each->second;
    if (channel_->MapsPeer() && !letter->in_place && letter->announced == letter->envelope.length) {
      ++each;
      continue;
    }
    each = letters_.erase(each);
    letter->failed = true;
    if (letter->receive == nullptr) {
      state_->inbox.letters.remove(letter);
    } else if (letter->copying == 0) {
      state_->End(letter->receive.get(), status);
    } else if (letter->receive->status.ok()) {
      letter->receive->status = status;
    }
  }
}

}  // namespace rdma_transport::collectives
