// Describes what libfabric offers on this host, and what would be used, without using it. For
// tools.
#pragma once

#include <string>

namespace rdma_transport::fabric::libfabric {

// Returns a JSON object for the settings of the environment: the library, and the providers and
// interfaces that it offers, with the reason why each is used or not. Errors are sentences in it.
// Thread-safe.
std::string SurveyJson();

}  // namespace rdma_transport::fabric::libfabric
