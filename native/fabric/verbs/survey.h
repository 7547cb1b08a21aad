// What the verbs fabric finds on this host and would use, told without using it; for the tools.
#pragma once

#include <string>
#include <vector>

#include "fabric/verbs/port_choice.h"

namespace rdma_transport::fabric::verbs {

// As ChoosePort(), but only looks: `candidates` gets every port there is, also with an error.
Status SurveyPorts(const Library& library, const VerbsSettings& settings,
                   std::vector<PortCandidate>* candidates, PortChoice* choice,
                   std::vector<std::string>* left_out);

// A JSON object for the environment's settings: library, ports with their GIDs and why one is used
// or not, what locked memory is needed and allowed. An error is in it as a sentence. Any thread.
std::string SurveyJson();

}  // namespace rdma_transport::fabric::verbs
