// Text from outside, for a person to read.
#pragma once

#include <string>
#include <string_view>

namespace rdma_transport {

// At most `most` bytes of `text`, with a question mark for each byte that is not printable ASCII:
// nothing in it can confuse a terminal, or look like another line of a log.
inline std::string Printable(std::string_view text, size_t most) {
  std::string shown(text.substr(0, most));
  for (char& each : shown) {
    if (each < ' ' || each > '~') each = '?';
  }
  return shown;
}

}  // namespace rdma_transport
