// Checks of messages for users.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace rdma_transport::testing {

inline void ExpectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}
inline void ExpectHas(const Status& status, const std::string& part) {
  ExpectHas(status.message(), part);
}
// One of them at least.
inline void ExpectHasAny(const Status& status, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (status.message().find(part) != std::string::npos) return;
  }
  ADD_FAILURE() << "none of " << ::testing::PrintToString(parts) << " in: " << status.message();
}
inline void ExpectLacks(const Status& status, const std::string& part) {
  EXPECT_EQ(status.message().find(part), std::string::npos)
      << "'" << part << "' in: " << status.message();
}

}  // namespace rdma_transport::testing
