// Describes the verbs ports of this host, and which one would be used, without using them. For
// tools.
#pragma once

#include <string>
#include <vector>

#include "fabric/verbs/port_choice.h"

namespace rdma_transport::fabric::verbs {

// Like ChoosePort(), but keeps nothing open. `candidates` receives every port, also if an error is
// returned.
Status SurveyPorts(const Library& library, const VerbsSettings& settings,
                   std::vector<PortCandidate>* candidates, PortChoice* choice,
                   std::vector<std::string>* left_out);

// Returns a JSON object for the settings of the environment: the library, the ports with their GIDs
// and why each is used or not, and the required and permitted locked memory. Errors are sentences
// in it. Thread-safe.
std::string SurveyJson();

}  // namespace rdma_transport::fabric::verbs
