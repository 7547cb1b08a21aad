#include "collectives/letter.h"

#include <algorithm>
#include <new>
#include <string>

namespace rdma_transport::collectives {

std::shared_ptr<Receive> Inbox::TakeReceive(const Envelope& envelope) {
  const auto found = std::find_if(receives.begin(), receives.end(),
                                  [&](const auto& each) { return each->Matches(envelope); });
  if (found == receives.end()) return nullptr;
  std::shared_ptr<Receive> receive = std::move(*found);
  receives.erase(found);
  return receive;
}

std::shared_ptr<Letter> Inbox::Find(int source, int tag) const {
  Receive wanted;
  wanted.peer = source;
  wanted.tag = tag;
  const auto found = std::find_if(letters.begin(), letters.end(),
                                  [&](const auto& each) { return wanted.Matches(each->envelope); });
  return found == letters.end() ? nullptr : *found;
}

std::shared_ptr<Letter> Inbox::Take(int source, int tag) {
  std::shared_ptr<Letter> letter = Find(source, tag);
  if (letter == nullptr) return nullptr;
  letters.erase(std::find(letters.begin(), letters.end(), letter));  // remove() would look at all
  return letter;
}

std::unique_ptr<char[]> AllocateBytes(uint64_t length) {
  return std::unique_ptr<char[]>(new (std::nothrow) char[length]);
}

void Match(Letter* letter, const std::shared_ptr<Receive>& receive) {
  const uint64_t length = letter->envelope.length;
  receive->message = letter->envelope;
  letter->receive = receive;
  letter->accepted = true;
  const bool allocates = receive->buffer == nullptr && length > 0;
  if (letter->held != nullptr && allocates) {
    receive->owned = std::move(letter->held);
  } else if (allocates) {
    receive->owned = AllocateBytes(length);
    if (receive->owned == nullptr) {
      receive->status = Status(Code::kResourceExhausted, "there is no memory for a message of " +
                                                             std::to_string(length) + " bytes");
      return;
    }
  }
  if (allocates) {
    receive->buffer = receive->owned.get();
    receive->capacity = length;
  }
  if (length > receive->capacity) {
    receive->status = Status(Code::kInvalidArgument, "the message has " + std::to_string(length) +
                                                         " bytes, and the array has only " +
                                                         std::to_string(receive->capacity));
    return;
  }
  if (letter->target == nullptr) letter->target = receive->buffer;
}

}  // namespace rdma_transport::collectives
