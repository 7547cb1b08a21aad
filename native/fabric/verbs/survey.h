// Describes the verbs ports of this host, and which one would be used, without using them. For
// tools.
#pragma once

#include <string>

namespace rdma_transport::fabric::verbs {

// Returns a JSON object for the settings of the environment: the library, the ports with their GIDs
// and why each is used or not, and the required and permitted locked memory. Errors are sentences
// in it. Thread-safe.
std::string SurveyJson();

}  // namespace rdma_transport::fabric::verbs
