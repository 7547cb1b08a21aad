// Makes untrusted text safe to print.
#pragma once

#include <string>
#include <string_view>

namespace rdma_transport {

// Returns at most `most` bytes of `text`, with "?" for each byte that is not printable ASCII. The
// result cannot confuse a terminal or fake a log line.
inline std::string Printable(std::string_view text, size_t most) {
  std::string shown(text.substr(0, most));
  for (char& each : shown) {
    if (each < ' ' || each > '~') each = '?';
  }
  return shown;
}

}  // namespace rdma_transport
