// The processors near a device, as the kernel lists them in files such as "local_cpulist".
#pragma once

#include <string>
#include <string_view>

namespace rdma_transport::fabric::host {

// Returns whether `list`, for example "0-3,8", contains a processor on which this thread may run.
// Also returns true if the list is empty or malformed, because it then excludes nothing.
bool MayRunOnAny(std::string_view list);

// Returns whether this thread may run near a device, by the folder `device` in sysfs. True if that
// is not known.
bool MayRunNear(const std::string& device);

}  // namespace rdma_transport::fabric::host
