#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

namespace rdma_transport {

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  size_t done = 0;
  while (done < count) {
    const ssize_t n = getrandom(bytes.data() + done, count - done, 0);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      // getrandom() without flags fails only where the system call is missing; the address of a
      // stack variable and the clock would be guessable, so an all-zero token is refused later.
      return std::string(count, '\0');
    }
  }
  return bytes;
}

uint64_t Random64() {
  const std::string bytes = RandomBytes(sizeof(uint64_t));
  uint64_t value = 0;
  for (unsigned char byte : bytes) value = value << 8 | byte;
  return value;
}

std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string Hex(uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return Hex(bytes);
}

}  // namespace rdma_transport
