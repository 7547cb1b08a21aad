// Notifications that are longer than a record: in what they are cut, and how they become whole
// again.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric::host {

// Longer ones are refused.
constexpr size_t kLongestNotification = (size_t{4} << 20) + kMaxStripeHeader;

// Returns InvalidArgument if no notification may be that long.
inline Status CheckNotification(size_t length) {
  if (length <= kLongestNotification) return OkStatus();
  return Status(Code::kInvalidArgument,
                "a notification of " + std::to_string(length) +
                    " bytes is too long: " + std::to_string(kLongestNotification) + " is the most");
}

// Joins the parts of one. Not thread-safe.
class PartJoiner {
 public:
  // Keeps a part. Returns DataLoss if the notification becomes longer than any may be.
  Status Keep(std::string_view part) {
    parts_.append(part);
    if (parts_.size() <= kLongestNotification) return OkStatus();
    return Status(Code::kDataLoss, "a notification that does not end");
  }
  // Returns the notification that ends with `last`; it is valid until the next call. Returns
  // DataLoss if it is longer than any may be.
  Status Complete(std::string_view last, std::string_view* whole) {
    *whole = last;
    if (parts_.empty()) return OkStatus();
    RDMA_RETURN_IF_ERROR(Keep(last));
    whole_ = std::exchange(parts_, std::string());
    *whole = whole_;
    return OkStatus();
  }

 private:
  std::string parts_;
  std::string whole_;
};

}  // namespace rdma_transport::fabric::host
