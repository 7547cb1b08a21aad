// Waiting for events as the real library's blocking calls do.
#pragma once

namespace fake_ibverbs {

// False with errno, EAGAIN if the descriptor is O_NONBLOCK: only called when nothing is there.
bool WaitReadable(int fd);

}  // namespace fake_ibverbs
